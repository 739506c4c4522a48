// Layout invariance: data, tensor and sequence parallel, ZeRO, accumulation and recompute are the same function as one
// process.
#include <gtest/gtest.h>

#include "parallel/self_communicator.h"
#include "tests/support/engine_harness.h"
#include "tests/support/goldens.h"
#include "tests/support/mpi_world.h"

namespace trainer::test {
namespace {

constexpr int kGlobalBatch = 16;
constexpr int kSteps = 5;

struct Layout {
  int dp = 1, tp = 1;
  bool sequence_parallel = false;
  int zero_stage = 0, zero_group = 0;
  int accumulation = 1;
  std::string recompute = "none";

  std::vector<std::string> sets() const {
    return {fmt::format("parallelism.data_parallel_size={}", dp),
            fmt::format("parallelism.tensor_parallel_size={}", tp),
            fmt::format("parallelism.sequence_parallel={}", sequence_parallel),
            fmt::format("parallelism.zero_stage={}", zero_stage),
            fmt::format("parallelism.zero_group_size={}", zero_group),
            fmt::format("train.global_batch_size={}", kGlobalBatch),
            fmt::format("train.micro_batch_size={}", kGlobalBatch / dp / accumulation),
            fmt::format("activation_checkpointing.mode={}", recompute)};
  }
  std::string text() const {
    return fmt::format("dp {} tp {} sp {} zero {} (group {}) accumulation {} recompute {}", dp, tp, sequence_parallel,
                       zero_stage, zero_group, accumulation, recompute);
  }
};

/// What is compared.
struct Run {
  double loss = 0.0, grad_norm = 0.0;  // of the first step
  WholeTensors gradients, weights;
};

std::vector<std::string> with(std::vector<std::string> sets, const std::vector<std::string>& more) {
  sets.insert(sets.end(), more.begin(), more.end());
  return sets;
}

/// First step's loss, norm and gradients, then the weights after all steps; `use` sees the engine in between.
template <class UseGradients, class UseWeights>
void train(Engine& engine, Run& run, const UseGradients& use_gradients, const UseWeights& use_weights) {
  load_golden_weights(engine);
  SampleSource source(engine);
  engine.compute_gradients(source.source(), 0);
  use_gradients();
  source.seek(0);
  for (int step = 0; step < kSteps; ++step) {
    engine.step(source.source(), step, 1e-3);
    const UpdateState& state = engine.state();
    if (step > 0) continue;
    run.loss = state.loss_sum / state.target_tokens;
    run.grad_norm = state.grad_norm;
  }
  use_weights();
}

Run reference(const std::string& family, const std::vector<std::string>& sets) {
  const Config config = family_config(family, with(Layout{}.sets(), sets), 1);
  const FaultPlan no_fault;
  Engine engine(config, {}, std::make_unique<SelfCommunicator>("world"), no_fault);
  Run run;
  train(
      engine, run, [&] { run.gradients = whole(owned_gradients(engine)); },
      [&] { run.weights = whole(owned_state(engine)); });
  return run;
}

struct Tolerance {
  double scalar, relative, absolute;
  bool weights;
};
constexpr Tolerance kFloat64{1e-10, 1e-10, 1e-13, true};
// Adam turns rounding noise of near-zero gradients into full steps: float32 weights are not compared.
constexpr Tolerance kFloat32{1e-5, 1e-5, 1e-7, false};

void expect_equal_to_one_process(const std::string& family, const Layout& layout, const std::vector<std::string>& sets,
                                 const Run& expected, const Tolerance& tolerance) {
  SCOPED_TRACE(family + " " + layout.text());
  const Config config = family_config(family, with(layout.sets(), sets), layout.dp * layout.tp);
  const FaultPlan no_fault;
  Engine engine(config, {}, test_world().split(0, test_world().rank(), "world"), no_fault);
  Run run;
  Worst gradients, weights;
  train(
      engine, run,
      [&] {
        gradients =
            compare(engine, owned_gradients(engine), expected.gradients, tolerance.relative, tolerance.absolute);
      },
      [&] {
        if (tolerance.weights)
          weights = compare(engine, owned_state(engine), expected.weights, tolerance.relative, tolerance.absolute);
      });
  EXPECT_NEAR(run.loss, expected.loss, tolerance.scalar * expected.loss);
  EXPECT_NEAR(run.grad_norm, expected.grad_norm, tolerance.scalar * expected.grad_norm);
  EXPECT_LE(gradients.ratio, 1.0) << gradients.tensor;
  EXPECT_LE(weights.ratio, 1.0) << weights.tensor;
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
  const Run expected = reference(family, sets);
  for (const Layout& layout : layouts(test_world().size()))
    expect_equal_to_one_process(family, layout, sets, expected, kFloat64);
}

// Grouped-query attention with fewer KV heads (2) than four tp ranks: replicated KV heads.
TEST(Layout, Llama3) {
  run_matrix("llama3", {});
}

/// A few layouts of every rank count for what the other families add.
void run_sample(const std::string& family, const std::vector<std::string>& sets, const Tolerance& tolerance) {
  const int ranks = test_world().size();
  const Run expected = reference(family, sets);
  std::vector<Layout> sample;
  for (const int tp : {1, 2, 4}) {
    const int dp = ranks / tp;
    if (dp * tp != ranks) continue;
    sample.push_back({dp, tp, tp > 1, dp > 1 ? 1 : 0, dp > 2 ? dp / 2 : 0, dp > 4 ? 1 : 4, "full"});
    sample.push_back({dp, tp, false, 0, 0, 1, "selective"});
    if (dp == 1) continue;
    for (const int zero : {2, 3})
      sample.push_back({dp, tp, tp > 1, zero, dp > 2 ? dp / 2 : 0, dp > 4 ? 1 : 2, zero == 2 ? "none" : "full"});
  }
  for (const Layout& layout : sample) expect_equal_to_one_process(family, layout, sets, expected, tolerance);
}

TEST(Layout, Gpt2WithDropout) {
  run_sample("gpt2", {"model.hidden_dropout=0.1", "model.attention_dropout=0.1"}, kFloat64);
}
TEST(Layout, NeoxWithDropout) {
  run_sample("neox", {"model.hidden_dropout=0.1"}, kFloat64);
}
TEST(Layout, Mistral) {
  run_sample("mistral", {}, kFloat64);
}
TEST(Layout, Qwen2Tied) {
  run_sample("qwen2", {"train.z_loss=0.001"}, kFloat64);
}
TEST(Layout, Qwen3) {
  run_sample("qwen3", {}, kFloat64);
}
/// Layers enough that every buffer of whole blocks is used again.
TEST(Layout, DeepModel) {
  run_sample("llama3", {"model.num_layers=5"}, kFloat64);
  run_sample("qwen2", {"model.num_layers=4"}, kFloat64);
}
TEST(Layout, Float32) {
  run_sample("llama3", {"precision.dtype=float32"}, kFloat32);
  run_sample("gpt2", {"precision.dtype=float32"}, kFloat32);
}
TEST(Layout, Sgd) {
  run_sample("qwen3", {"optimizer.name=sgd", "optimizer.nesterov=true"}, kFloat64);
}

}  // namespace
}  // namespace trainer::test
