// What metrics.jsonl says about speed, and that looking at a run does not change it.
#include <fmt/format.h>

#include "tests/launch/run_folder.h"

namespace trainer::launch_test {
namespace {

constexpr double kStepSleep = 0.05, kPause = 0.4;
/// A record's time is taken a moment behind the end of its last step; longer where other tests have the cores.
constexpr double kMoment = 0.02;
constexpr double kTokens = 4 * 16;  // of a step

/// Steps take at least kStepSleep, every evaluation and every save at least kPause.
std::string slow_motion() {
  return fmt::format(
      "site=step,action=sleep:{};rank=0,site=evaluate,action=sleep:{};rank=0,site=save.begin,action=sleep:{}",
      kStepSleep, kPause, kPause);
}

/// Rate x time is the number of counted tokens: the steps' own time is all of the wall time that is not evaluation or
/// saving, in every window.
void expect_true_rates(const std::vector<nlohmann::json>& records) {
  ASSERT_GE(records.size(), 2u);
  for (std::size_t i = 1; i < records.size(); ++i) {
    const nlohmann::json &record = records[i], &before = records[i - 1];
    SCOPED_TRACE(record.dump());
    const double steps = record.at("step").get<double>() - before.at("step").get<double>();
    const double rate = record.at("tokens_per_second").get<double>();
    const double seconds = record.at("step_ms").get<double>() * 1e-3 * steps;
    EXPECT_NEAR(rate * seconds, steps * kTokens, 1e-6 * steps * kTokens);
    EXPECT_LE(rate, 1.01 * kTokens / kStepSleep) << "a spike";
    // What happened between the two records, besides steps: the evaluation of this record, the save after the last.
    double wall = record.at("time").get<double>() - before.at("time").get<double>();
    const bool paused = record.contains("eval_loss") || before.at("step").get<std::int64_t>() % 6 == 0;
    if (paused) {
      EXPECT_GT(wall - seconds, kPause);
      EXPECT_LT(seconds, steps * kStepSleep + kPause) << "evaluation or saving counts as training";
    } else {
      EXPECT_NEAR(seconds, wall, kMoment);
    }
  }
}

TEST(Throughput, CountsTokensOnceAndTrainingOnly) {
  const RunFolder folder;
  std::vector<std::uint8_t> mask(100 * 16 + 1);
  for (std::size_t i = 1; i < mask.size(); i += 2) mask[i] = 1;
  write_shard(folder / "masked.h5", learnable_tokens(100 * 16 + 1, 64), 64, mask);
  const std::vector<std::string> sets = {"data.train=[masked.h5]", "data.validation=[train.h5]", "eval.interval=4",
                                         "eval.batches=2",         "checkpoint.save_interval=6", "logging.interval=2",
                                         "train.train_steps=14"};
  const std::vector<std::vector<std::string>> layouts = {{}, {"train.micro_batch_size=4"}};
  for (std::size_t i = 0; i < layouts.size(); ++i) {
    std::vector<std::string> all = sets;
    all.insert(all.end(), layouts[i].begin(), layouts[i].end());
    const std::string run = fmt::format("one-{}", i);
    folder.expect_exit(0, {.sets = all, .fault = slow_motion(), .folder = run});
    expect_true_rates(folder.metrics(run));
    EXPECT_EQ(folder.metric("target_tokens", run), std::vector<double>(7, kTokens / 2));
  }
  std::vector<std::string> tensor_parallel = sets;
  tensor_parallel.emplace_back("parallelism.tensor_parallel_size=2");
  folder.expect_exit(0, {.ranks = 2, .sets = tensor_parallel, .fault = slow_motion(), .folder = "two"});
  expect_true_rates(folder.metrics("two"));
}

TEST(Throughput, DoesNotSpikeAfterAResume) {
  const RunFolder folder;
  const std::vector<std::string> sets = {"checkpoint.save_interval=5", "logging.interval=1"};
  folder.run({.sets = sets, .fault = "step=6,site=step,action=kill"});
  folder.expect_exit(0, {.sets = sets, .fault = fmt::format("site=step,action=sleep:{}", kStepSleep)});
  const auto records = folder.metrics();
  ASSERT_EQ(records.size(), 20u);
  for (std::size_t i = 5; i < records.size(); ++i)
    EXPECT_LE(records[i].at("tokens_per_second").get<double>(), 1.01 * kTokens / kStepSleep) << records[i];
}

TEST(Evaluation, DoesNotTouchTheTrainingState) {
  const RunFolder folder;
  const std::vector<std::string> common = {"model.hidden_dropout=0.1", "precision.dtype=fp16"};
  for (const int ranks : {1, 2}) {
    std::vector<std::string> with_eval = common;
    with_eval.insert(with_eval.end(), {"data.validation=[train.h5]", "eval.interval=3", "eval.batches=3"});
    const std::string plain = fmt::format("plain-{}", ranks), evaluated = fmt::format("evaluated-{}", ranks);
    folder.expect_exit(0, {.ranks = ranks, .sets = common, .print = true, .folder = plain});
    folder.expect_exit(0, {.ranks = ranks, .sets = with_eval, .print = true, .folder = evaluated});
    for (int rank = 0; rank < ranks; ++rank) {
      EXPECT_EQ(folder.hashes(rank, plain).size(), 20u);
      EXPECT_EQ(folder.hashes(rank, evaluated), folder.hashes(rank, plain));
    }
    int evaluations = 0;
    for (const nlohmann::json& record : folder.metrics(evaluated)) {
      if (!record.contains("eval_loss")) continue;
      ++evaluations;
      EXPECT_EQ(record.at("eval_tokens"), 3 * 4 * 16);
    }
    EXPECT_EQ(evaluations, 7) << "every third of 20 steps and the last";
    EXPECT_EQ(folder.metric("loss", evaluated), folder.metric("loss", plain));
  }
}

/// The same validation loss in every layout, also when the last batch is not full.
TEST(Evaluation, IsTheSameInEveryLayout) {
  const RunFolder folder;
  write_shard(folder / "seven.h5", learnable_tokens(7 * 16 + 1, 64), 64);
  const std::vector<std::string> sets = {"precision.dtype=float64", "data.validation=[seven.h5]", "eval.batches=0",
                                         "train.train_steps=3"};
  std::vector<double> losses;
  for (const auto& [ranks, tp] : {std::pair{1, 1}, {2, 1}, {2, 2}, {4, 2}}) {
    std::vector<std::string> all = sets;
    all.push_back(fmt::format("parallelism.tensor_parallel_size={}", tp));
    const std::string run = fmt::format("{}-{}", ranks, tp);
    folder.expect_exit(0, {.ranks = ranks, .sets = all, .folder = run});
    const nlohmann::json last = folder.metrics(run).back();
    EXPECT_EQ(last.at("eval_tokens"), 7 * 16);
    losses.push_back(last.at("eval_loss").get<double>());
  }
  EXPECT_TRUE(near(losses, std::vector<double>(losses.size(), losses[0]), 1e-10));
}

}  // namespace
}  // namespace trainer::launch_test
