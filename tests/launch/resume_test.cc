// A run that was interrupted and started again equals the run that was not.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <set>
#include <tuple>

#include "tests/launch/run_folder.h"
#include "tests/support/errors.h"
#include "tests/support/files.h"

namespace trainer::launch_test {
namespace {

std::string kill_at(std::int64_t step) {
  return fmt::format("step={},site=step,action=kill", step);
}

/// Everything of a record that does not depend on how long things took.
nlohmann::json timeless(nlohmann::json record) {
  for (const char* key : {"time", "tokens_per_second", "step_ms", "tflops", "mfu", "data_wait_ms"}) record.erase(key);
  return record;
}

void expect_same_metrics(const RunFolder& folder, const std::string& run, const std::string& unbroken) {
  const auto records = folder.metrics(run), expected = folder.metrics(unbroken);
  ASSERT_EQ(records.size(), expected.size());
  for (std::size_t i = 0; i < records.size(); ++i) EXPECT_EQ(timeless(records[i]), timeless(expected[i]));
}

/// 10 + 10 steps and 20 steps: sample ids, hashes of masters, moments and scaler, and the metrics are the same.
void expect_resume_is_exact(int ranks, const std::vector<std::string>& more_sets) {
  const RunFolder folder;
  std::vector<std::string> sets = more_sets;
  sets.emplace_back("checkpoint.save_interval=10");
  folder.expect_exit(0, {.ranks = ranks, .sets = sets, .print = true, .folder = "unbroken"});
  const Result killed = folder.run({.ranks = ranks, .sets = sets, .fault = kill_at(11), .print = true});
  EXPECT_NE(killed.exit_code, 0);
  EXPECT_EQ(folder.checkpoints(), std::vector<std::string>{"step_00000010"});
  std::filesystem::remove_all(folder / "run/logs");  // only what the second part says
  const Result resumed = folder.expect_exit(0, {.ranks = ranks, .sets = sets, .print = true});
  EXPECT_TRUE(mentions(resumed.out, {"resumed from", "after step 10"}));
  for (int rank = 0; rank < ranks; ++rank) {
    const auto all = folder.hashes(rank, "unbroken"), later = folder.hashes(rank);
    ASSERT_EQ(all.size(), 20u);
    ASSERT_EQ(later.size(), 10u);
    EXPECT_TRUE(std::equal(later.begin(), later.end(), std::next(all.begin(), 10))) << "rank " << rank;
    EXPECT_EQ(std::set<std::string>({all.at(9), all.at(10), all.at(11)}).size(), 3u) << "the hash never changes";
  }
  const auto ids = folder.sample_ids(ranks, "unbroken"), later_ids = folder.sample_ids(ranks);
  ASSERT_EQ(later_ids.size(), 10u);
  EXPECT_TRUE(std::equal(later_ids.begin(), later_ids.end(), std::next(ids.begin(), 10)));
  expect_same_metrics(folder, "run", "unbroken");
}

TEST(Resume, IsExactInEveryPrecision) {
  for (const char* precision : {"float32", "bf16", "fp16"}) {
    SCOPED_TRACE(precision);
    expect_resume_is_exact(1, {fmt::format("precision.dtype={}", precision), "model.hidden_dropout=0.1",
                               "precision.loss_scale.growth_interval=3"});
  }
}

TEST(Resume, IsExactOnSeveralRanks) {
  expect_resume_is_exact(2, {"precision.dtype=bf16", "parallelism.zero_stage=1", "optimizer.moments_dtype=bf16"});
  expect_resume_is_exact(4, {"precision.dtype=fp16", "parallelism.tensor_parallel_size=2", "parallelism.zero_stage=1",
                             "parallelism.sequence_parallel=true"});
}

/// Through the loader, with and without documents: the same samples, another function.
TEST(Resume, IsExactWithAttentionWithinDocuments) {
  const std::string documents = "data.intra_document_attention=true";
  expect_resume_is_exact(2, {documents, "model.hidden_dropout=0.1"});
  const RunFolder folder;
  folder.expect_exit(0, {.ranks = 2, .sets = {documents}});
  folder.expect_exit(0, {.sets = {documents, "train.micro_batch_size=2"}, .folder = "alone"});
  folder.expect_exit(0, {.folder = "windows"});
  EXPECT_TRUE(near(folder.metric("loss"), folder.metric("loss", "alone"), 1e-4));
  EXPECT_FALSE(near(folder.metric("loss"), folder.metric("loss", "windows"), 1e-4));
}

TEST(Resume, GoesOnInsideAnEpoch) {
  const RunFolder folder;
  write_shard(folder / "ten.h5", learnable_tokens(10 * 16 + 1, 64), 64);
  const std::vector<std::string> sets = {"data.train=[ten.h5]", "train.global_batch_size=2", "train.train_steps=0",
                                         "train.train_epochs=3", "checkpoint.save_interval=1"};
  folder.expect_exit(0, {.sets = sets, .print = true, .folder = "unbroken"});
  const auto expected = folder.sample_ids(1, "unbroken");
  ASSERT_EQ(expected.size(), 15u);
  std::set<std::vector<std::int64_t>> orders;
  for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
    std::vector<std::int64_t> order;
    for (std::int64_t step = 1; step <= 5; ++step)
      for (const std::int64_t id : expected.at(5 * epoch + step)) order.push_back(id);
    orders.insert(order);
    std::sort(order.begin(), order.end());
    EXPECT_EQ(order, (std::vector<std::int64_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9})) << "epoch " << epoch;
  }
  EXPECT_EQ(orders.size(), 3u) << "two epochs have the same order";
  for (const std::int64_t stop : {5, 7, 10}) {
    const std::string run = fmt::format("stopped-{}", stop);
    EXPECT_NE(folder.run({.sets = sets, .fault = kill_at(stop + 1), .folder = run}).exit_code, 0);
    folder.expect_exit(0, {.sets = sets, .print = true, .folder = run});
    const auto ids = folder.sample_ids(1, run);
    ASSERT_EQ(ids.size(), static_cast<std::size_t>(15 - stop));
    for (const auto& [step, windows] : ids) EXPECT_EQ(windows, expected.at(step)) << "step " << step;
  }
}

TEST(Resume, AnotherDataParallelSizeSeesTheSameSamples) {
  const RunFolder folder;
  const std::vector<std::string> sets = {"checkpoint.save_interval=10"};
  folder.expect_exit(0, {.ranks = 2, .sets = sets, .print = true, .folder = "unbroken"});
  const auto expected = folder.sample_ids(2, "unbroken");
  ASSERT_EQ(expected.size(), 20u);
  folder.run({.ranks = 2, .sets = sets, .fault = kill_at(11)});
  folder.expect_exit(0, {.ranks = 1, .sets = sets, .print = true});
  const auto ids = folder.sample_ids(1);
  ASSERT_EQ(ids.size(), 10u);
  for (const auto& [step, windows] : ids) EXPECT_EQ(windows, expected.at(step)) << "step " << step;
  EXPECT_TRUE(near(folder.metric("loss"), folder.metric("loss", "unbroken"), 1e-4));
}

TEST(Resume, RepeatsNoMetrics) {
  const RunFolder folder;
  const std::vector<std::string> sets = {"checkpoint.save_interval=4"};
  folder.expect_exit(0, {.sets = sets, .folder = "unbroken"});
  folder.run({.sets = sets, .fault = kill_at(11)});
  ASSERT_EQ(folder.metric("step").back(), 10) << "steps 9 and 10 were recorded and are run again";
  folder.expect_exit(0, {.sets = sets});
  expect_same_metrics(folder, "run", "unbroken");
  int event_files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder / "run/tb")) {
    EXPECT_TRUE(entry.path().filename().string().starts_with("events.out.tfevents.")) << entry.path();
    EXPECT_GT(entry.file_size(), 500u);
    ++event_files;
  }
  EXPECT_EQ(event_files, 2) << "one for each start";
  EXPECT_TRUE(std::filesystem::exists(folder / "run/config.resolved.yaml"));
}

TEST(Resume, OfAFinishedRunChangesNothing) {
  const RunFolder folder;
  folder.expect_exit(0, {.ranks = 2});
  const auto before = folder.metrics();
  folder.expect_exit(0, {.ranks = 2});
  EXPECT_EQ(folder.metrics(), before);
  EXPECT_EQ(folder.checkpoints().size(), 1u);
}

TEST(Resume, WithOtherDataIsRefusedUnlessAllowed) {
  const RunFolder folder;
  folder.expect_exit(0, {.sets = {"train.train_steps=4"}});
  const std::string resolved = read_file(folder / "run/config.resolved.yaml");
  for (const auto& [set, then, now] : {std::tuple{"train.seed=5", "1234", "5"},
                                       {"train.global_batch_size=2", "4", "2"},
                                       {"train.seq_length=8", "16", "8"}}) {
    const std::vector<std::string> sets = {"train.train_steps=6", set};
    const Result refused = folder.expect_exit(2, {.sets = sets});
    EXPECT_TRUE(
        mentions(refused.err, {std::string(set, std::strchr(set, '=')), then, now, "checkpoint.allow_data_change"}));
    EXPECT_EQ(folder.metrics().size(), 4u) << "a refused start changes no file of the run";
    EXPECT_EQ(read_file(folder / "run/config.resolved.yaml"), resolved);
  }
  // Other tokens, as many of them; and the same ones, stored and dealt to files in another way.
  std::vector<std::int32_t> ids = learnable_tokens(200 * 16 + 1, 64);
  std::filesystem::rename(folder / "train.h5", folder / "first.h5");
  write_shard(folder / "train-0.h5", {ids.begin(), ids.begin() + 1000}, 64);
  write_shard(folder / "train-1.h5", {ids.begin() + 1000, ids.end()}, 64);
  folder.expect_exit(0, {.sets = {"train.train_steps=5", "data.train=[train-*.h5]"}});
  std::reverse(ids.begin(), ids.end());
  write_shard(folder / "train.h5", ids, 64);
  const Result refused = folder.expect_exit(2, {.sets = {"train.train_steps=6"}});
  EXPECT_TRUE(mentions(refused.err, {"tokens in data.train (hash of a sample): ", "checkpoint.allow_data_change"}));
  std::filesystem::rename(folder / "first.h5", folder / "train.h5");
  folder.expect_exit(0, {.sets = {"train.train_steps=6", "train.seed=5", "checkpoint.allow_data_change=true"}});
  EXPECT_EQ(folder.metric("step"), (std::vector<double>{1, 2, 3, 4, 5, 6}));
}

TEST(Resume, WithAnotherBatchCountsTheTokensThatWereProcessed) {
  const RunFolder folder;
  const std::vector<std::string> sets = {"train.train_steps=0", "train.train_tokens=640", "lr_scheduler.name=constant",
                                         "checkpoint.save_interval=6"};
  EXPECT_NE(folder.run({.sets = sets, .fault = kill_at(7)}).exit_code, 0);
  std::vector<std::string> larger = sets;
  larger.insert(larger.end(), {"train.global_batch_size=8", "checkpoint.allow_data_change=true"});
  EXPECT_NE(folder.run({.ranks = 2, .sets = larger, .fault = kill_at(8), .launcher = Launcher::mpirun}).exit_code, 0);
  const Result resumed = folder.expect_exit(0, {.sets = larger});
  // 6 steps of 64 tokens, then steps of 128 until there are 640.
  EXPECT_TRUE(mentions(resumed.out, {"steps          7 to 8\n", "128 a step, 640 in all"}));
  EXPECT_EQ(folder.metric("tokens"), (std::vector<double>{64, 128, 192, 256, 320, 384, 512, 640}));
  EXPECT_TRUE(mentions(folder.command("checkpoint show run").out, {"640 (128 a step: 8 x 16)\n"}));
  EXPECT_TRUE(mentions(folder.expect_exit(0, {.sets = larger}).out, {"done: 8 steps"})) << "long enough";
}

TEST(Resume, OfAnotherModelIsRefused) {
  const RunFolder folder;
  folder.expect_exit(0, {.sets = {"train.train_steps=2"}});
  const Result refused = folder.expect_exit(2, {.sets = {"train.train_steps=4", "model.num_layers=1"}});
  EXPECT_TRUE(mentions(refused.err, {"model.num_layers", "2 in the checkpoint", "1 now"}));
  EXPECT_EQ(folder.metrics().size(), 2u);
  const Result told = folder.expect_exit(0, {.sets = {"train.train_steps=3", "model.rope_theta=20000"}});
  EXPECT_TRUE(mentions(told.out, {"Changed since the checkpoint\n", "model.rope_theta   10000  20000\n"}));
}

TEST(Resume, DoesNotStartMomentumFromNone) {
  const RunFolder folder;
  const auto sgd = [](int steps, const char* momentum) {
    return std::vector<std::string>{"optimizer.name=sgd", fmt::format("train.train_steps={}", steps),
                                    fmt::format("optimizer.momentum={}", momentum)};
  };
  folder.expect_exit(0, {.sets = sgd(2, "0")});
  EXPECT_TRUE(
      mentions(folder.expect_exit(2, {.sets = sgd(4, "0.9")}).err, {"optimizer.momentum: 0 in the checkpoint"}));
  std::vector<std::string> narrow = sgd(4, "0");  // as wide as before: there are none
  narrow.push_back("optimizer.moments_dtype=bf16");
  folder.expect_exit(0, {.sets = narrow});
  folder.expect_exit(0, {.sets = sgd(2, "0.9"), .folder = "with"});
  folder.expect_exit(0, {.sets = sgd(4, "0"), .folder = "with"});
}

TEST(Resume, SaysWhichSettingsHaveChanged) {
  const RunFolder folder;
  folder.expect_exit(0, {.sets = {"train.train_steps=2"}});
  const Result other =
      folder.expect_exit(0, {.ranks = 2, .sets = {"train.train_steps=3", "optimizer.lr=1e-4", "logging.interval=1"}});
  EXPECT_TRUE(mentions(other.out, {"Changed since the checkpoint\n"
                                   "  key                 then     now\n"
                                   "  optimizer.lr       0.003  0.0001\n"
                                   "  train.train_steps      2       3\n"}));
  const Result same = folder.expect_exit(0, {.sets = {"train.train_steps=3", "optimizer.lr=1e-4"}});
  EXPECT_EQ(count_of(same.out, "Changed since"), 0) << same.out;
}

TEST(Resume, InHalfPrecisionStartsWithItsOwnLossScale) {
  const RunFolder folder;
  folder.expect_exit(0, {.sets = {"train.train_steps=2"}});
  folder.expect_exit(0, {.sets = {"train.train_steps=3", "precision.dtype=fp16"}});
  EXPECT_EQ(folder.metrics().back().at("loss_scale").get<double>(), 65536);
}

}  // namespace
}  // namespace trainer::launch_test
