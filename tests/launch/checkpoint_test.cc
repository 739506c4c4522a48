// Checkpoints of whole runs: which are kept, which are taken, and what damage does.
#include <fmt/format.h>

#include <filesystem>
#include <functional>
#include <iterator>

#include "tests/launch/run_folder.h"
#include "tests/support/errors.h"
#include "tests/support/files.h"

namespace trainer::launch_test {
namespace {

namespace fs = std::filesystem;

TEST(Checkpoints, KeepLastAndSaveAtEnd) {
  const RunFolder folder;
  folder.expect_exit(0, {.ranks = 2, .sets = {"checkpoint.save_interval=6", "checkpoint.keep_last=2"}});
  EXPECT_EQ(folder.checkpoints(), (std::vector<std::string>{"step_00000018", "step_00000020"}));
  EXPECT_TRUE(mentions(read_file(folder / "run/checkpoints/latest"), {"step_00000020"}));
  folder.expect_exit(0, {.sets = {"checkpoint.save_at_end=false"}, .folder = "none"});
  EXPECT_TRUE(folder.checkpoints("none").empty());
}

TEST(Checkpoints, AmidSkippedStepsDoNotPushOutTheLastBefore) {
  const RunFolder folder;
  std::string fault;
  for (int step = 7; step <= 12; ++step) fault += fmt::format("step={},site=gradients,action=inf;", step);
  const std::vector<std::string> sets{"checkpoint.save_interval=2", "checkpoint.keep_last=2"};
  const auto until = [&](int step) {
    std::vector<std::string> all = sets;
    all.push_back(fmt::format("train.train_steps={}", step));
    return all;
  };
  const Result amid = folder.expect_exit(0, {.ranks = 2, .sets = until(12), .fault = fault});
  EXPECT_EQ(folder.checkpoints(), (std::vector<std::string>{"step_00000006", "step_00000010", "step_00000012"}));
  EXPECT_TRUE(mentions(amid.out, {"its weights are those of step 6: 4 steps in a row skipped"}));
  folder.expect_exit(0, {.ranks = 2, .sets = until(16)});
  EXPECT_EQ(folder.checkpoints(), (std::vector<std::string>{"step_00000014", "step_00000016"}));
}

TEST(Checkpoints, OfEveryStepUnderARelativePathAreAllSound) {
  const RunFolder folder;
  folder.expect_exit(
      0, {.ranks = 2,
          .sets = {"train.train_steps=50", "checkpoint.save_interval=1", "checkpoint.save_dir=saved"},
          .fault = "rank=0,site=save.write,action=sleep:0.004;rank=1,site=save.publish,action=sleep:0.006"});
  for (int step = 1; step <= 50; ++step) {
    const std::string name = fmt::format("saved/step_{:08}", step);
    ASSERT_TRUE(fs::exists(folder / name));
    if (step % 10 != 0) continue;
    const Result verified = folder.command("checkpoint verify " + name);
    EXPECT_EQ(verified.exit_code, 0) << verified.err;
  }
  EXPECT_EQ(std::distance(fs::directory_iterator(folder / "saved"), fs::directory_iterator()), 52)
      << "50 checkpoints, `latest` and the lock";
}

TEST(Checkpoints, ShowListsTheVocabularyWithoutItsPadding) {
  const RunFolder folder;
  folder.expect_exit(0, {.ranks = 2, .sets = {"model.vocab_size=257", "parallelism.tensor_parallel_size=2"}});
  const Result shown = folder.command("checkpoint show run/checkpoints/step_00000020");
  EXPECT_EQ(shown.exit_code, 0) << shown.err;
  int tables = 0;
  for (const std::string& line : lines_of(shown.out)) {
    if (line.find("embed_tokens.weight") == std::string::npos && line.find("lm_head.weight") == std::string::npos)
      continue;
    EXPECT_TRUE(mentions(line, {"257", "32"}));
    ++tables;
  }
  EXPECT_EQ(tables, 6) << "two tables, each with its two moments\n" << shown.out;
  EXPECT_EQ(count_of(shown.out, "258"), 0) << shown.out;
}

TEST(Checkpoints, ShowBeginsWithASummaryOfTheNewestOfARun) {
  const RunFolder folder;
  folder.expect_exit(0, {.ranks = 2,
                         .sets = {"checkpoint.save_interval=8", "precision.dtype=fp16", "parallelism.zero_stage=1"},
                         .fault = "step=20,site=gradients,action=inf"});
  for (const char* path : {"run", "run/checkpoints"}) {
    const Result shown = folder.command(fmt::format("checkpoint show {}", path));
    EXPECT_EQ(shown.exit_code, 0) << shown.err;
    EXPECT_TRUE(mentions(shown.out, {"the newest complete checkpoint in run/checkpoints:\n\n"
                                     "Checkpoint run/checkpoints/step_00000020\n",
                                     "20, 19 updates\n", "the last 1 step: the weights are those of step 19\n",
                                     "1.28k (64 a step: 4 x 16)\n", "2 blocks, hidden 32, 4 heads (2 key/value)",
                                     "fp16, loss scale 32768\n", "adamw, peak lr 0.003\n",
                                     "2 ranks: dp=2 tp=1 zero=1\n", "in 2 files\n", "\nTensors\n"}));
  }
  write_file(folder / "run/checkpoints/step_00000020/manifest.json", "torn");
  const Result before = folder.command("checkpoint verify run");
  EXPECT_EQ(before.exit_code, 0) << before.err;
  EXPECT_TRUE(mentions(before.out, {"Checkpoint run/checkpoints/step_00000016\n", "every checksum matches"}));
  EXPECT_TRUE(mentions(before.err, {"step_00000020 is not usable"}));
  EXPECT_EQ(count_of(before.out, "Tensors"), 0);
}

TEST(Checkpoints, ShowFindsWhereARunSavesAndSaysWhatIsNone) {
  const RunFolder folder;
  folder.expect_exit(0, {.sets = {"train.train_steps=2", "checkpoint.save_dir=elsewhere"}});
  fs::create_directory(folder / "run/checkpoints");  // of an earlier run
  EXPECT_TRUE(mentions(folder.command("checkpoint show run").out, {"Checkpoint elsewhere/step_00000002\n"}));
  folder.expect_exit(0, {.sets = {"train.train_steps=2"}, .folder = "torn"});
  write_file(folder / "torn/config.resolved.yaml", "checkpoint: {save_");
  const Result torn = folder.command("checkpoint show torn");
  EXPECT_EQ(torn.exit_code, 0);
  EXPECT_TRUE(mentions(torn.err, {"torn/config.resolved.yaml cannot be read"}));
  EXPECT_TRUE(mentions(torn.out, {"Checkpoint torn/checkpoints/step_00000002\n"}));
  const Result none = folder.command("checkpoint show run/logs");
  EXPECT_EQ(none.exit_code, 4);
  EXPECT_TRUE(mentions(none.err, {"run/logs: is no checkpoint", "manifest.json"}));
  const Result nowhere = folder.command("checkpoint show nowhere");
  EXPECT_EQ(nowhere.exit_code, 4);
  EXPECT_TRUE(mentions(nowhere.err, {"nowhere: there is no such folder"}));
  fs::create_symlink("loop", folder / "loop");
  const Result loop = folder.command("checkpoint verify loop");
  EXPECT_EQ(loop.exit_code, 4);
  EXPECT_TRUE(mentions(loop.err, {"loop: cannot be read: "}));
}

TEST(Checkpoints, LoadByPathAndFromOtherLayouts) {
  const RunFolder folder;
  folder.expect_exit(0, {.sets = {"checkpoint.save_interval=10"}, .print = true, .folder = "first"});
  // From the middle of another run, in another folder: the same rest of the run.
  const std::vector<std::string> by_path = {"checkpoint.load=first/checkpoints/step_00000010"};
  const Result first = folder.expect_exit(0, {.sets = by_path, .print = true});
  EXPECT_EQ(count_of(first.out, "leaves"), 0) << first.out;
  EXPECT_EQ(folder.hashes().size(), 10u);
  EXPECT_EQ(folder.hashes().at(20), folder.hashes(0, "first").at(20));
  const Result again = folder.expect_exit(0, {.sets = by_path});
  EXPECT_TRUE(mentions(again.out, {"leaves ", "/run/checkpoints/step_00000020 aside", "auto would go on from it"}));
  // The newest itself, as a shell completes its name.
  const Result newest = folder.expect_exit(0, {.sets = {"checkpoint.load=run/checkpoints/step_00000020/"}});
  EXPECT_EQ(count_of(newest.out, "leaves"), 0) << newest.out;
  folder.expect_exit(0, {.ranks = 4,
                         .sets = {"checkpoint.load=first/checkpoints/step_00000010",
                                  "parallelism.tensor_parallel_size=2", "parallelism.zero_stage=1"},
                         .folder = "spread"});
  const std::vector<double> losses = folder.metric("loss", "first");
  EXPECT_TRUE(near(folder.metric("loss", "spread"), {losses.begin() + 10, losses.end()}, 1e-4));
  for (const char* above : {"first", "first/checkpoints"})
    EXPECT_TRUE(mentions(folder.expect_exit(4, {.sets = {fmt::format("checkpoint.load={}", above)}}).err,
                         {"is no checkpoint; did you mean ", "/first/checkpoints/step_00000020?"}));
}

// ---- Damage ------------------------------------------------------------------------------------

void flip_one_bit(const std::string& path) {
  std::string bytes = read_file(path);
  bytes.at(bytes.size() / 2) = static_cast<char>(bytes.at(bytes.size() / 2) ^ 4);
  write_file(path, bytes);
}

struct Damage {
  std::string name;
  std::function<void(const std::string& folder)> inflict;  // of a checkpoint
};

std::vector<Damage> damages() {
  return {
      {"a flipped bit", [](const std::string& at) { flip_one_bit(at + "/rank-0001.h5"); }},
      {"a flipped bit in the manifest", [](const std::string& at) { flip_one_bit(at + "/manifest.json"); }},
      {"a truncated file",
       [](const std::string& at) { fs::resize_file(at + "/rank-0000.h5", fs::file_size(at + "/rank-0000.h5") - 1); }},
      {"a missing file", [](const std::string& at) { fs::remove(at + "/rank-0001.h5"); }},
      {"a missing manifest", [](const std::string& at) { fs::remove(at + "/manifest.json"); }},
      {"an empty manifest", [](const std::string& at) { write_file(at + "/manifest.json", ""); }}};
}

TEST(Damage, OfTheNewestCheckpointIsSaidAndThePreviousTaken) {
  const RunFolder folder;
  const std::vector<std::string> sets = {"checkpoint.save_interval=5"};
  folder.expect_exit(0, {.ranks = 2, .sets = sets, .print = true, .folder = "sound"});
  for (const Damage& damage : damages()) {
    SCOPED_TRACE(damage.name);
    fs::remove_all(folder / "run");
    fs::create_directory(folder / "run");
    fs::copy(folder / "sound/checkpoints", folder / "run/checkpoints", fs::copy_options::recursive);
    damage.inflict(folder.checkpoint(20));
    const Result named = folder.command("checkpoint verify run/checkpoints/step_00000020");
    EXPECT_EQ(named.exit_code, 4) << named.out << named.err;
    const Result result = folder.expect_exit(0, {.ranks = 2, .sets = sets, .print = true});
    EXPECT_TRUE(mentions(result.out, {"step_00000020", "after step 15"}));
    EXPECT_EQ(count_of(result.out, "checkpoint step_00000020 is "), 1) << result.out;
    for (int rank = 0; rank < 2; ++rank) EXPECT_EQ(folder.hashes(rank).at(20), folder.hashes(rank, "sound").at(20));
    // The damaged one was replaced by a sound one.
    EXPECT_EQ(folder.command("checkpoint verify run/checkpoints/step_00000020").exit_code, 0);
  }
}

TEST(Damage, OfTheNamedOrOfAllCheckpointsEndsTheRun) {
  const RunFolder folder;
  folder.expect_exit(0, {.ranks = 2, .sets = {"checkpoint.save_interval=10"}});
  flip_one_bit(folder.checkpoint(10) + "/rank-0000.h5");
  const Result named = folder.expect_exit(4, {.sets = {"checkpoint.load=run/checkpoints/step_00000010"}});
  EXPECT_TRUE(mentions(named.err, {"step_00000010", "rank-0000.h5"}));
  flip_one_bit(folder.checkpoint(20) + "/rank-0001.h5");
  const auto metrics = folder.metrics();
  const Result all = folder.expect_exit(4, {.ranks = 2, .sets = {"train.train_steps=30"}});
  EXPECT_TRUE(mentions(all.err, {"of 2 checkpoints in ", "checkpoint.load: none"}));
  EXPECT_TRUE(mentions(all.out, {"step_00000010", "step_00000020"}));
  EXPECT_EQ(count_of(all.err, "trainer: "), 1) << all.err;
  EXPECT_EQ(folder.metrics(), metrics);
}

}  // namespace
}  // namespace trainer::launch_test
