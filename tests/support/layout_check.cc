#include "tests/support/layout_check.h"

#include <gtest/gtest.h>

#include <utility>

#include "parallel/self_communicator.h"

namespace trainer::test {
namespace {

constexpr int kGlobalBatch = 16;
constexpr int kSteps = 5;

/// First step's loss, norm and gradients, then the weights after all steps; the callbacks see the engine in between.
template <class UseGradients, class UseWeights>
void train(Engine& engine, LayoutRun& run, const UseGradients& use_gradients, const UseWeights& use_weights) {
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

}  // namespace

std::vector<std::string> Layout::sets() const {
  return {fmt::format("parallelism.data_parallel_size={}", dp),
          fmt::format("parallelism.tensor_parallel_size={}", tp),
          fmt::format("parallelism.sequence_parallel={}", sequence_parallel),
          fmt::format("parallelism.zero_stage={}", zero_stage),
          fmt::format("parallelism.zero_group_size={}", zero_group),
          fmt::format("parallelism.zero_resident_layers={}", resident_layers),
          fmt::format("train.global_batch_size={}", kGlobalBatch),
          fmt::format("train.micro_batch_size={}", kGlobalBatch / dp / accumulation),
          fmt::format("activation_checkpointing.mode={}", recompute)};
}

std::string Layout::text() const {
  return fmt::format("dp {} tp {} sp {} zero {} (group {}, {} resident) accumulation {} recompute {}", dp, tp,
                     sequence_parallel, zero_stage, zero_group, resident_layers, accumulation, recompute);
}

std::vector<std::string> with(std::vector<std::string> sets, const std::vector<std::string>& more) {
  sets.insert(sets.end(), more.begin(), more.end());
  return sets;
}

std::vector<std::string> narrow_14b(bool tied) {
  return {"model.hidden_size=80",
          "model.num_layers=5",
          "model.num_attention_heads=40",
          "model.num_key_value_heads=8",
          "model.head_dim=8",
          "model.intermediate_size=216",
          fmt::format("model.tie_word_embeddings={}", tied)};
}

LayoutRun run_alone(const Context& ctx, const std::string& family, const std::vector<std::string>& sets) {
  const Config config = family_config(family, with(Layout{}.sets(), sets), 1);
  const FaultPlan no_fault;
  Engine engine(config, ctx, std::make_unique<SelfCommunicator>("world"), no_fault);
  LayoutRun run;
  train(
      engine, run, [&] { run.gradients = whole(owned_gradients(engine)); },
      [&] { run.weights = whole(owned_state(engine)); });
  return run;
}

void expect_equal_to_alone(const Context& ctx, std::unique_ptr<Communicator> world, const std::string& family,
                           const Layout& layout, const std::vector<std::string>& sets, const LayoutRun& expected,
                           const LayoutTolerance& tolerance) {
  SCOPED_TRACE(family + " " + layout.text());
  const Config config = family_config(family, with(layout.sets(), sets), layout.dp * layout.tp);
  const FaultPlan no_fault;
  Engine engine(config, ctx, std::move(world), no_fault);
  LayoutRun run;
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

}  // namespace trainer::test
