// Layout invariance: data, tensor and sequence parallel, ZeRO, accumulation and recompute are the same function as one
// process.
#include <gtest/gtest.h>

#include "core/train/inspect.h"
#include "tests/support/layout_check.h"
#include "tests/support/mpi_world.h"

namespace trainer::test {
namespace {

void expect_equal_to_one_process(const std::string& family, const Layout& layout, const std::vector<std::string>& sets,
                                 const LayoutRun& expected, const LayoutTolerance& tolerance) {
  expect_equal_to_alone({}, test_world().split(0, test_world().rank(), "world"), family, layout, sets, expected,
                        tolerance);
}

/// Every layout with exactly this many ranks.
std::vector<Layout> layouts(int ranks) {
  std::vector<Layout> all;
  for (const int tp : {1, 2, 4}) {
    const int dp = ranks / tp;
    if (dp * tp != ranks || dp > 4) continue;
    for (const bool sequence_parallel : {false, true}) {
      if (sequence_parallel && tp == 1) continue;
      for (const int accumulation : {1, 4})
        for (const char* recompute : {"none", "selective", "full"}) {
          all.push_back({dp, tp, sequence_parallel, 0, 0, accumulation, recompute});
          if (dp > 1) all.push_back({dp, tp, sequence_parallel, 1, 0, accumulation, recompute});
        }
      if (dp == 1) continue;
      for (const int zero : {2, 3}) {
        all.push_back({dp, tp, sequence_parallel, zero, 0, 1, "none"});
        all.push_back({dp, tp, sequence_parallel, zero, 0, 4, "full"});
        if (dp > 2) all.push_back({dp, tp, sequence_parallel, zero, dp / 2, 2, "selective"});
      }
    }
  }
  return all;
}

void run_matrix(const std::string& family, const std::vector<std::string>& sets) {
  const LayoutRun expected = run_alone({}, family, sets);
  for (const Layout& layout : layouts(test_world().size()))
    expect_equal_to_one_process(family, layout, sets, expected, kFloat64Layout);
}

// Grouped-query attention with fewer KV heads (2) than four tp ranks: replicated KV heads.
TEST(Layout, Llama3) {
  run_matrix("llama3", {});
}

/// A few layouts of every rank count for what the other families add.
void run_sample(const std::string& family, const std::vector<std::string>& sets, const LayoutTolerance& tolerance) {
  const int ranks = test_world().size();
  const LayoutRun expected = run_alone({}, family, sets);
  std::vector<Layout> sample;
  for (const int tp : {1, 2, 4}) {
    const int dp = ranks / tp;
    if (dp * tp != ranks || (ranks == 8 && tp != 2)) continue;  // 8 ranks are slow on few cores
    sample.push_back({dp, tp, tp > 1, dp > 1 ? 1 : 0, dp > 2 ? dp / 2 : 0, dp > 4 ? 1 : 4, "full"});
    sample.push_back({dp, tp, false, 0, 0, 1, "selective"});
    if (dp == 1) continue;
    for (const int zero : {2, 3})
      sample.push_back({dp, tp, tp > 1, zero, dp > 2 ? dp / 2 : 0, dp > 4 ? 1 : 2, zero == 2 ? "none" : "full"});
  }
  for (const Layout& layout : sample) expect_equal_to_one_process(family, layout, sets, expected, tolerance);
}

TEST(Layout, Gpt2WithDropout) {
  run_sample("gpt2", {"model.hidden_dropout=0.1", "model.attention_dropout=0.1"}, kFloat64Layout);
}
TEST(Layout, NeoxWithDropout) {
  run_sample("neox", {"model.hidden_dropout=0.1"}, kFloat64Layout);
}
TEST(Layout, Mistral) {
  run_sample("mistral", {}, kFloat64Layout);
}
TEST(Layout, Qwen2Tied) {
  run_sample("qwen2", {"train.z_loss=0.001"}, kFloat64Layout);
}
TEST(Layout, Qwen3) {
  run_sample("qwen3", {}, kFloat64Layout);
}
TEST(Layout, Documents) {
  run_sample("gpt2", {"data.intra_document_attention=true", "model.hidden_dropout=0.1"}, kFloat64Layout);
  run_sample("llama3", {"data.intra_document_attention=true"}, kFloat64Layout);
}
/// Layers enough that every buffer of whole blocks is used again.
TEST(Layout, DeepModel) {
  run_sample("llama3", {"model.num_layers=5"}, kFloat64Layout);
  run_sample("qwen2", {"model.num_layers=4"}, kFloat64Layout);
}
/// The shape of a 14B model in the layouts that 4 and 8 GPUs would have.
TEST(Layout, Narrow14B) {
  const int ranks = test_world().size();
  if (ranks < 4) GTEST_SKIP() << "needs 4 ranks";
  const LayoutRun expected = run_alone({}, "qwen2", narrow_14b(false));
  for (const Layout& layout :
       {Layout{.tp = ranks, .sequence_parallel = true, .recompute = "selective"},
        Layout{.tp = ranks, .accumulation = 2}, Layout{.dp = ranks, .zero_stage = 1, .recompute = "selective"},
        Layout{.dp = ranks, .zero_stage = 3, .accumulation = 2},
        Layout{.dp = ranks, .zero_stage = 3, .accumulation = 2, .resident_layers = 3},
        Layout{.dp = 2, .tp = ranks / 2, .sequence_parallel = true, .zero_stage = 1},
        Layout{.dp = 2,
        .tp = ranks / 2,
        .sequence_parallel = true,
        .zero_stage = 3,
        .accumulation = 2,
        .recompute = "selective"}})
    expect_equal_to_one_process("qwen2", layout, narrow_14b(false), expected, kFloat64Layout);
}
/// All ranks in one tensor parallel group: every family, an odd number of heads on each rank, KV heads that two ranks
/// share where heads are grouped, every way to recompute.
TEST(Layout, SequenceParallelOfEveryFamily) {
  const int ranks = test_world().size();
  if (ranks == 1) GTEST_SKIP() << "needs 2 ranks";
  for (const char* family : {"gpt2", "neox", "llama3", "mistral", "qwen2", "qwen3"}) {
    const bool grouped = std::string(family) != "gpt2" && std::string(family) != "neox";
    const std::vector<std::string> sets = {fmt::format("model.num_attention_heads={}", 3 * ranks),
                                           fmt::format("model.num_key_value_heads={}", grouped ? ranks / 2 : 3 * ranks),
                                           "model.head_dim=8",
                                           fmt::format("model.hidden_dropout={}", grouped ? 0.0 : 0.1)};
    const LayoutRun expected = run_alone({}, family, sets);
    for (const char* recompute : {"none", "selective", "full"})
      expect_equal_to_one_process(family, {.tp = ranks, .sequence_parallel = true, .recompute = recompute}, sets,
                                  expected, kFloat64Layout);
  }
}
TEST(Layout, OverlapChangesNoBit) {
  const int ranks = test_world().size();
  if (ranks == 1) GTEST_SKIP() << "needs 2 ranks";
  const FaultPlan no_fault;
  for (const char* family : {"gpt2", "neox", "llama3"})
    for (const bool sequence_parallel : {false, true}) {
      const Layout layout{.dp = ranks / 2, .tp = 2, .sequence_parallel = sequence_parallel, .recompute = "selective"};
      SCOPED_TRACE(fmt::format("{} {}", family, layout.text()));
      const auto hash = [&](bool overlap) {
        const Config config = family_config(
            family, with(layout.sets(), {"precision.dtype=bf16", fmt::format("comm.overlap={}", overlap)}), ranks);
        Engine engine(config, {}, test_world().split(0, test_world().rank(), "world"), no_fault);
        load_golden_weights(engine);
        SampleSource source(engine);
        for (int step = 0; step < 2; ++step) engine.step(source.source(), step, 1e-3);
        return state_hash(engine);
      };
      EXPECT_EQ(hash(true), hash(false));
    }
}
/// Under ZeRO 2 and 3 a bf16 block's gradients are written in bf16 where that is what travels; ZeRO 1 rounds a copy of
/// them. With one micro-batch, after which nothing is added.
TEST(Layout, GradientsInTheTypeOfTheWireHaveTheBitsOfRoundedOnes) {
  const int ranks = test_world().size();
  if (ranks > 4) GTEST_SKIP() << "the same as on 4 ranks, and slow";
  const FaultPlan no_fault;
  for (const char* family : {"gpt2", "qwen3"})  // with biases and without; norms of heads
    for (const char* precision : {"bf16", "fp16"})
      for (int tp = 1; 2 * tp <= ranks; tp *= 2) {
        const auto hash = [&](int zero_stage) {
          const Layout layout{.dp = ranks / tp, .tp = tp, .sequence_parallel = tp > 1, .zero_stage = zero_stage};
          const Config config = family_config(
              family,
              with(layout.sets(), {fmt::format("precision.dtype={}", precision), "precision.grad_reduce_dtype=bf16"}),
              ranks);
          Engine engine(config, {}, test_world().split(0, test_world().rank(), "world"), no_fault);
          load_golden_weights(engine);
          SampleSource source(engine);
          for (int step = 0; step < 3; ++step) engine.step(source.source(), step, 1e-3);
          return state_hash(engine);
        };
        SCOPED_TRACE(fmt::format("{} {} tp {}", family, precision, tp));
        const std::uint64_t rounded = hash(1);
        EXPECT_EQ(hash(2), rounded);
        EXPECT_EQ(hash(3), rounded);
      }
}
TEST(Layout, Float32) {
  run_sample("llama3", {"precision.dtype=float32"}, kFloat32Layout);
  run_sample("gpt2", {"precision.dtype=float32"}, kFloat32Layout);
}
TEST(Layout, Sgd) {
  run_sample("qwen3", {"optimizer.name=sgd", "optimizer.nesterov=true"}, kFloat64Layout);
}

}  // namespace
}  // namespace trainer::test
