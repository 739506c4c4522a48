// Checkpoints of a whole run: a resume is the unbroken run bit for bit, and any layout loads what any other has saved.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "core/train/checkpointing.h"
#include "core/train/inspect.h"
#include "parallel/host_exchange.h"
#include "tests/support/engine_harness.h"
#include "tests/support/mpi_world.h"

namespace trainer::test {
namespace {

/// A folder that all ranks share and rank 0 removes.
class SharedFolder {
 public:
  SharedFolder() {
    path_ = broadcast_string(test_world(), fmt::format("{}/resume.{}", ::testing::TempDir(), getpid()), 0);
  }
  ~SharedFolder() {
    if (test_world().rank() == 0) std::filesystem::remove_all(path_);
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

RunState run_state(Engine& engine, std::int64_t step) {
  return {.step = step, .update = engine.state()};
}

void save(Engine& engine, const std::string& folder, std::int64_t step) {
  const FaultPlan no_fault;
  save_checkpoint({.save_dir = folder,
                   .step = step,
                   .pieces = pieces_to_save(engine),
                   .state_json = to_json(run_state(engine, step)),
                   .config_yaml = {},
                   .versions = {},
                   .layout = {},
                   .keep_last = 0},
                  engine.mesh().world(), no_fault);
}

std::int64_t load(Engine& engine, const std::string& folder) {
  const auto found = find_checkpoint(folder, "auto", engine.mesh().world(), [](const std::string&) {});
  if (!found) throw std::runtime_error("no checkpoint in " + folder);
  const RunState saved = run_state_from_json(found->manifest.state_json);
  load_pieces(*found, pieces_to_load(engine), engine.mesh().world());
  finish_load(engine);
  engine.restore_state(saved.update);
  return saved.step;
}

std::vector<std::string> layout_sets(int dp, int tp, int zero, const std::string& precision) {
  return {fmt::format("parallelism.data_parallel_size={}", dp), fmt::format("parallelism.tensor_parallel_size={}", tp),
          fmt::format("parallelism.zero_stage={}", zero), fmt::format("train.micro_batch_size={}", 8 / dp),
          "train.global_batch_size=8", "model.hidden_dropout=0.1",
          // A rare overflow exercises the scaler's state on the way.
          "precision.loss_scale.growth_interval=4", "precision.dtype=" + precision};
}

void train(Engine& engine, std::int64_t first, std::int64_t last) {
  SampleSource source(engine);
  source.seek(first);
  for (std::int64_t step = first; step < last; ++step) engine.step(source.source(), step, 1e-3);
}

TEST(RunState, OfAnOlderCheckpointCountsTokensByItsBatch) {
  const RunState state{.step = 7, .tokens = 5000, .seq_length = 16, .global_batch_size = 4};
  std::string text = to_json(state);
  EXPECT_EQ(run_state_from_json(text).tokens, 5000);
  const std::string key = R"("tokens":5000,)";
  const std::size_t at = text.find(key) != std::string::npos ? text.find(key) : text.find(R"(,"tokens":5000)");
  ASSERT_NE(at, std::string::npos) << text;
  EXPECT_EQ(run_state_from_json(text.erase(at, key.size())).tokens, 7 * 4 * 16);
}

void resume_is_unbroken(int dp, int tp, int zero, const std::string& precision,
                        const std::vector<std::string>& more = {}) {
  SCOPED_TRACE(fmt::format("dp {} tp {} zero {} {}", dp, tp, zero, precision));
  const SharedFolder folder;
  std::vector<std::string> sets = layout_sets(dp, tp, zero, precision);
  sets.insert(sets.end(), more.begin(), more.end());
  const Config config = family_config("llama3", sets, dp * tp);
  const FaultPlan no_fault;
  Engine unbroken(config, {}, new_test_world(), no_fault);
  unbroken.initialize();
  train(unbroken, 0, 10);
  save(unbroken, folder.path(), 10);
  train(unbroken, 10, 20);
  Engine resumed(config, {}, new_test_world(), no_fault);
  ASSERT_EQ(load(resumed, folder.path()), 10);
  train(resumed, 10, 20);
  EXPECT_EQ(state_hash(resumed), state_hash(unbroken));
  EXPECT_EQ(resumed.state().loss_sum, unbroken.state().loss_sum);
}

TEST(Resume, IsTheUnbrokenRun) {
  const int ranks = test_world().size();
  const int tp = ranks >= 4 ? 2 : 1;
  for (const char* precision : {"float32", "bf16", "fp16"})
    for (const int zero : {0, 1, 2, 3})
      if (zero == 0 || ranks / tp > 1) resume_is_unbroken(ranks / tp, tp, zero, precision);
}

TEST(Resume, IsTheUnbrokenRunWithBf16Moments) {
  resume_is_unbroken(test_world().size(), 1, test_world().size() > 1 ? 1 : 0, "bf16", {"optimizer.moments_dtype=bf16"});
}

TEST(Resume, IsTheUnbrokenRunWithDocuments) {
  const int ranks = test_world().size(), tp = ranks >= 4 ? 2 : 1;
  resume_is_unbroken(ranks / tp, tp, 0, "bf16", {"data.intra_document_attention=true"});
}

/// Saved in one layout, loaded in others: gathered masters and moments are the same bits.
TEST(Resume, AnyLayoutLoadsWhatAnotherSaved) {
  if (test_world().size() != 4) GTEST_SKIP() << "needs 4 ranks";
  for (const char* precision : {"float32", "bf16", "fp16"}) {
    const SharedFolder folder;
    const FaultPlan no_fault;
    // Each stage saves once.
    const int stage = std::string(precision) == "float32" ? 3 : std::string(precision) == "bf16" ? 1 : 2;
    Engine saved(family_config("llama3", layout_sets(2, 2, stage, precision), 4), {}, new_test_world(), no_fault);
    saved.initialize();
    train(saved, 0, 3);
    save(saved, folder.path(), 3);
    // One rank alone has everything: the reference for all others.
    Engine whole_model(family_config("llama3", layout_sets(1, 1, 0, precision), 1), {},
                       test_world().split(test_world().rank(), 0, "self"), no_fault);
    ASSERT_EQ(load(whole_model, folder.path()), 3);
    const WholeTensors expected = whole(owned_state(whole_model));
    EXPECT_EQ(compare(saved, owned_state(saved), expected, 0.0, 1e-300).ratio, 0.0);
    for (const auto& [dp, tp, zero] :
         {std::tuple{1, 4, 0}, {4, 1, 0}, {4, 1, 1}, {2, 2, 0}, {4, 1, 2}, {2, 2, 3}, {4, 1, 3}}) {
      SCOPED_TRACE(fmt::format("{} loaded as dp {} tp {} zero {}", precision, dp, tp, zero));
      Engine loaded(family_config("llama3", layout_sets(dp, tp, zero, precision), 4), {}, new_test_world(), no_fault);
      ASSERT_EQ(load(loaded, folder.path()), 3);
      const Worst worst = compare(loaded, owned_state(loaded), expected, 0.0, 1e-300);
      EXPECT_EQ(worst.ratio, 0.0) << worst.tensor;
      EXPECT_EQ(loaded.state().loss_scale, saved.state().loss_scale);
    }
  }
}

/// Resident layers change where weights lie, and no bit.
TEST(Resume, OtherLayersStayResident) {
  const int ranks = test_world().size();
  if (ranks == 1) GTEST_SKIP() << "needs several ranks";
  const FaultPlan no_fault;
  const auto engine = [&](int layers) {
    auto sets = layout_sets(ranks, 1, 3, "bf16");
    sets.push_back(fmt::format("parallelism.zero_resident_layers={}", layers));
    return std::make_unique<Engine>(family_config("llama3", sets, ranks), Context{}, new_test_world(), no_fault);
  };
  const auto unbroken = engine(0);
  unbroken->initialize();
  train(*unbroken, 0, 6);
  for (const auto& [first, then] : {std::pair{0, 1}, {1, 2}, {2, 0}}) {
    SCOPED_TRACE(fmt::format("{} layers, then {}", first, then));
    const SharedFolder folder;
    const auto saved = engine(first);
    saved->initialize();
    train(*saved, 0, 3);
    save(*saved, folder.path(), 3);
    const auto resumed = engine(then);
    resumed->initialize();  // what was gathered before must not last
    ASSERT_EQ(load(*resumed, folder.path()), 3);
    train(*resumed, 3, 6);
    EXPECT_EQ(state_hash(*resumed), state_hash(*unbroken));
    EXPECT_EQ(resumed->state().loss_sum, unbroken->state().loss_sum);
  }
}

/// A run may move its optimizer state into the host's memory, or back, at a checkpoint.
TEST(Resume, OptimizerStateMovesToTheHostAndBack) {
  const int ranks = test_world().size();
  const FaultPlan no_fault;
  for (const char* precision : {"float32", "bf16", "fp16"}) {
    SCOPED_TRACE(precision);
    const auto engine = [&](bool offload) {
      auto sets = layout_sets(ranks, 1, ranks > 1 ? 3 : 0, precision);
      sets.push_back(fmt::format("optimizer.offload={}", offload));
      return std::make_unique<Engine>(family_config("llama3", sets, ranks), Context{}, new_test_world(), no_fault);
    };
    const auto unbroken = engine(false);
    unbroken->initialize();
    train(*unbroken, 0, 6);
    for (const bool first : {false, true}) {
      const SharedFolder folder;
      const auto saved = engine(first);
      saved->initialize();
      train(*saved, 0, 3);
      save(*saved, folder.path(), 3);
      const auto resumed = engine(!first);
      ASSERT_EQ(load(*resumed, folder.path()), 3);
      EXPECT_EQ(state_hash(*resumed), state_hash(*saved));
      train(*resumed, 3, 6);
      EXPECT_EQ(state_hash(*resumed), state_hash(*unbroken)) << "offloaded first: " << first;
    }
  }
}

/// Another layout goes on with the same losses (float32, to rounding).
TEST(Resume, LossesGoOnInAnotherLayout) {
  if (test_world().size() != 4) GTEST_SKIP() << "needs 4 ranks";
  const SharedFolder folder;
  const FaultPlan no_fault;
  Engine saved(family_config("llama3", layout_sets(2, 2, 1, "float32"), 4), {}, new_test_world(), no_fault);
  saved.initialize();
  train(saved, 0, 3);
  save(saved, folder.path(), 3);
  for (const auto& [dp, tp] : {std::pair{1, 4}, {4, 1}}) {
    Engine loaded(family_config("llama3", layout_sets(dp, tp, 0, "float32"), 4), {}, new_test_world(), no_fault);
    load(loaded, folder.path());
    SampleSource here(saved), there(loaded);
    here.seek(3);
    there.seek(3);
    Engine again(family_config("llama3", layout_sets(2, 2, 1, "float32"), 4), {}, new_test_world(), no_fault);
    load(again, folder.path());
    for (std::int64_t step = 3; step < 13; ++step) {
      again.step(here.source(), step, 1e-4);
      loaded.step(there.source(), step, 1e-4);
      const double expected = again.state().loss_sum;
      EXPECT_NEAR(loaded.state().loss_sum, expected, 1e-5 * expected) << "step " << step;
    }
  }
}

}  // namespace
}  // namespace trainer::test
