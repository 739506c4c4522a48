// What is computed does not depend on how it is spread over ranks, seen from outside: in metrics.jsonl.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include "tests/launch/run_folder.h"
#include "tests/support/errors.h"

namespace trainer::launch_test {
namespace {

std::vector<std::string> with(std::vector<std::string> sets, const std::vector<std::string>& more) {
  sets.insert(sets.end(), more.begin(), more.end());
  return sets;
}

/// Starts that are the same run, by name: the run folder's.
std::vector<Start> layouts() {
  return {
      {.folder = "one"},
      {.sets = {"train.micro_batch_size=4"}, .folder = "one-batch"},
      {.ranks = 2, .sets = {"train.micro_batch_size=2"}, .folder = "dp2"},
      {.ranks = 2, .sets = {"parallelism.tensor_parallel_size=2"}, .folder = "tp2"},
      {.ranks = 2, .sets = {"parallelism.zero_stage=1"}, .folder = "zero"},
      {.ranks = 2, .sets = {"parallelism.zero_stage=3"}, .folder = "zero3"},
      {.ranks = 4,
       .sets = {"parallelism.tensor_parallel_size=2", "parallelism.sequence_parallel=true", "parallelism.zero_stage=1"},
       .folder = "all"}};
}

void run_layouts(const RunFolder& folder, const std::vector<std::string>& sets) {
  for (Start start : layouts()) {
    start.sets = with(start.sets, sets);
    folder.expect_exit(0, start);
  }
}

TEST(Layouts, ShareOneLearningRate) {
  const RunFolder folder;
  run_layouts(folder, {"train.train_steps=100", "optimizer.lr=1e-3", "lr_scheduler.warmup_steps=10",
                       "lr_scheduler.min_lr_ratio=0.1", "model.num_layers=1"});
  std::vector<double> expected;
  for (int k = 0; k < 100; ++k) {
    const double progress = (k - 10) / 89.0;
    expected.push_back(k < 10 ? 1e-3 * (k + 1) / 10
                              : 1e-3 * (0.1 + 0.9 * (1 + std::cos(std::numbers::pi * progress)) / 2));
  }
  for (const Start& start : layouts()) {
    SCOPED_TRACE(start.folder);
    EXPECT_TRUE(near(folder.metric("lr", start.folder), expected, 1e-12));
    std::vector<double> steps = folder.metric("step", start.folder), tokens = folder.metric("tokens", start.folder);
    ASSERT_EQ(steps.size(), 100u);
    for (std::size_t i = 0; i < steps.size(); ++i) {
      EXPECT_EQ(steps[i], static_cast<double>(i + 1));
      EXPECT_EQ(tokens[i], static_cast<double>((i + 1) * 4 * 16)) << "tensor-parallel ranks share tokens";
    }
  }
}

/// The loss is the mean over the unmasked targets of the global batch, never a mean of means.
TEST(Layouts, ShareOneLossOverUnevenTargets) {
  const RunFolder folder;
  std::vector<std::uint8_t> mask;
  for (const int real : {5, 60, 7, 33})
    for (int i = 0; i < 64; ++i) mask.push_back(i < real ? 1 : 0);
  mask.insert(mask.begin(), 0);  // the first token is no target
  write_shard(folder / "uneven.h5", learnable_tokens(4 * 64 + 1, 64), 64, mask);
  run_layouts(folder, {"train.seq_length=64", "data.train=[uneven.h5]", "train.train_steps=3"});
  const double loss = folder.metric("loss", "one")[0], norm = folder.metric("grad_norm", "one")[0];
  EXPECT_NEAR(loss, std::log(64), 0.2);
  for (const Start& start : layouts()) {
    SCOPED_TRACE(start.folder);
    EXPECT_EQ(folder.metric("target_tokens", start.folder), std::vector<double>(3, 5 + 60 + 7 + 33));
    EXPECT_NEAR(folder.metric("loss", start.folder)[0], loss, 1e-6 * loss);
    EXPECT_NEAR(folder.metric("grad_norm", start.folder)[0], norm, 1e-6 * norm);
    EXPECT_TRUE(near(folder.metric("loss", start.folder), folder.metric("loss", "one"), 1e-5));
  }
}

/// Float64, so that a real difference is not taken for rounding.
TEST(Layouts, TiedEmbeddingsStayTied) {
  const RunFolder folder;
  run_layouts(folder, {"precision.dtype=float64", "model.tie_word_embeddings=true"});
  for (const Start& start : layouts()) {
    SCOPED_TRACE(start.folder);
    EXPECT_TRUE(near(folder.metric("loss", start.folder), folder.metric("loss", "one"), 1e-9));
    EXPECT_TRUE(near(folder.metric("grad_norm", start.folder), folder.metric("grad_norm", "one"), 1e-9));
  }
}

/// A vocabulary that the tensor-parallel size does not divide, and one beyond 16 bits.
TEST(Layouts, PaddedVocabulariesDoNotShow) {
  const RunFolder folder;
  std::vector<std::int32_t> ids(8 * 16 + 1);
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = std::array{65535, 65536, 128255, 0, 7}[i % 5];
  write_shard(folder / "large.h5", ids, 128256);
  const std::vector<std::vector<std::string>> models = {
      {"model.vocab_size=257"},
      {"model.vocab_size=128255", "model.hidden_size=8", "data.train=[near.h5]", "train.train_steps=3"},
      {"model.vocab_size=128256", "model.hidden_size=8", "data.train=[large.h5]", "train.train_steps=3"}};
  std::replace(ids.begin(), ids.end(), 128255, 128254);
  write_shard(folder / "near.h5", ids, 128255);
  for (std::size_t i = 0; i < models.size(); ++i) {
    SCOPED_TRACE(models[i][0]);
    const std::vector<std::string> sets = with(models[i], {"precision.dtype=float64", "checkpoint.save_at_end=false"});
    const std::string one = fmt::format("one-{}", i), two = fmt::format("two-{}", i);
    folder.expect_exit(0, {.sets = sets, .folder = one});
    folder.expect_exit(0, {.ranks = 2, .sets = with(sets, {"parallelism.tensor_parallel_size=2"}), .folder = two});
    EXPECT_TRUE(near(folder.metric("loss", two), folder.metric("loss", one), 1e-9));
    EXPECT_TRUE(near(folder.metric("grad_norm", two), folder.metric("grad_norm", one), 1e-9));
  }
  EXPECT_NEAR(folder.metric("loss", "one-2")[0], std::log(128256), 0.1) << "ids that wrap change the first loss little";
}

/// 8 heads and 2 key/value heads: tensor parallel 2 splits them, 4 replicates the latter.
TEST(Layouts, KeyValueHeadsAreSplitOrReplicated) {
  const RunFolder folder;
  const std::vector<std::string> sets = {"precision.dtype=float64", "model.num_attention_heads=8", "model.head_dim=8"};
  folder.expect_exit(0, {.sets = sets, .folder = "1"});
  for (const int tp : {2, 4}) {
    const std::string run = std::to_string(tp);
    folder.expect_exit(0,
                       {.ranks = tp, .sets = with(sets, {"parallelism.tensor_parallel_size=" + run}), .folder = run});
    EXPECT_TRUE(near(folder.metric("loss", run), folder.metric("loss", "1"), 1e-9));
    EXPECT_TRUE(near(folder.metric("grad_norm", run), folder.metric("grad_norm", "1"), 1e-9));
  }
}

// ---- Precision ---------------------------------------------------------------------------------

TEST(Precision, EveryKindLearns) {
  const RunFolder folder;
  for (const char* precision : {"float64", "float32", "bf16", "fp16"}) {
    SCOPED_TRACE(precision);
    folder.expect_exit(0, {.sets = {fmt::format("precision.dtype={}", precision), "train.train_steps=60",
                                    "train.micro_batch_size=4", "optimizer.lr=1e-2"},
                           .folder = precision});
    const std::vector<double> losses = folder.metric("loss", precision);
    EXPECT_NEAR(losses.front(), std::log(64), 0.2);
    EXPECT_LT(losses.back(), losses.front() - 1.0);
    for (const double loss : losses) EXPECT_TRUE(std::isfinite(loss));
  }
}

TEST(Precision, AnOverflowOnOneRankIsSkippedByAll) {
  const RunFolder folder;
  int number = 0;
  for (const char* layout : {"parallelism.tensor_parallel_size=2", "parallelism.zero_stage=1"}) {
    for (const char* precision : {"fp16", "bf16"}) {
      SCOPED_TRACE(fmt::format("{} {}", layout, precision));
      const std::string run = fmt::format("run-{}", ++number);
      folder.expect_exit(0, {.ranks = 2,
                             .sets = {layout, fmt::format("precision.dtype={}", precision), "train.train_steps=6"},
                             .fault = "rank=1,step=3,site=gradients,action=inf",
                             .folder = run});
      const auto records = folder.metrics(run);
      ASSERT_EQ(records.size(), 6u);
      for (const nlohmann::json& record : records) {
        const auto step = record.at("step").get<std::int64_t>();
        EXPECT_EQ(record.at("skipped"), step == 3);
        EXPECT_TRUE(record.at("loss").is_number()) << record;
        EXPECT_EQ(record.value("loss_scale", 0.0), precision == std::string("bf16") ? 0.0
                                                   : step < 3                       ? 65536.0
                                                                                    : 32768.0);
      }
    }
  }
}

TEST(Precision, OverflowAtEveryStepEndsTheRun) {
  const RunFolder folder;
  const std::string tensor = "model.layers.1.mlp.down_proj.weight";
  const Result floor = folder.expect_exit(
      6, {.ranks = 2,
          .sets = {"precision.dtype=fp16", "precision.loss_scale.init_scale=16", "train.train_steps=1000"},
          .fault = "rank=1,site=gradients,action=inf,tensor=" + tensor});
  // 16 -> 8 -> 4 -> 2 -> 1, and the fifth finds the scale at its floor.
  EXPECT_TRUE(mentions(floor.err, {"step 5", tensor, "min_scale"}));
  EXPECT_EQ(count_of(floor.err, "trainer: "), 1) << floor.err;
  EXPECT_EQ(count_of(floor.err, "step 5"), 1) << floor.err;
  ASSERT_EQ(folder.metrics().size(), 5u);
  for (const nlohmann::json& record : folder.metrics()) EXPECT_EQ(record.at("skipped"), true);
  const Result skips = folder.expect_exit(6, {.sets = {"precision.dtype=bf16", "precision.max_consecutive_skips=7"},
                                              .fault = "site=gradients,action=nan",
                                              .folder = "skips"});
  EXPECT_TRUE(mentions(skips.err, {"step 7", "7 steps in a row", "model.embed_tokens.weight"}));
  EXPECT_TRUE(mentions(skips.out, {"| norm nan"}));
  EXPECT_EQ(count_of(skips.out, "-nan"), 0) << skips.out;
}

}  // namespace
}  // namespace trainer::launch_test
