#include "tests/support/golden_check.h"

#include <gtest/gtest.h>

#include <cmath>

#include "parallel/self_communicator.h"
#include "tests/support/engine_harness.h"
#include "tests/support/goldens.h"

namespace trainer::test {
namespace {

void check_gradients(Engine& engine, SampleSource& source, const Golden& golden, const GoldenTolerance& tolerance) {
  engine.compute_gradients(source.source(), 0);
  // Stored gradients carry 1 / (global batch x T); the true ones are divided by the number of targets.
  const auto tokens = static_cast<double>(golden.batch_size * golden.seq_length);
  WholeTensors gradients = whole(owned_gradients(engine));
  ASSERT_EQ(gradients.size(), golden.parameters.size());
  for (const GoldenParameter& parameter : golden.parameters) {
    std::vector<double>& gradient = gradients.at(parameter.name);
    for (double& g : gradient) g *= tokens / static_cast<double>(golden.target_tokens);
    const double n = static_cast<double>(gradient.size());
    EXPECT_LE(error_norm(parameter.gradient, gradient.data()),
              tolerance.gradients * parameter.gradient.norm + tolerance.gradient_noise * std::sqrt(n))
        << parameter.name;
  }
}

}  // namespace

void check_golden(const std::string& family, const Context& ctx, const GoldenTolerance& tolerance) {
  const Golden golden = load_golden(family);
  const Config config = family_config(golden.family, {std::string("precision.dtype=") + tolerance.precision}, 1);
  const FaultPlan no_fault;
  Engine engine(config, ctx, std::make_unique<SelfCommunicator>("world"), no_fault);
  load_golden_weights(engine);
  SampleSource source(engine, [&](std::int64_t step, std::int64_t slot) {
    const GoldenBatch& batch = golden.batches.at(static_cast<std::size_t>(step));
    const auto t = golden.seq_length;
    return Sample{{batch.token_ids.begin() + slot * t, batch.token_ids.begin() + (slot + 1) * t},
                  {batch.targets.begin() + slot * t, batch.targets.begin() + (slot + 1) * t}};
  });
  EXPECT_LE(relative_error(golden.logits, logits_of(engine, source.next()).data()), tolerance.logits);
  source.seek(0);
  check_gradients(engine, source, golden, tolerance);
  source.seek(0);
  for (std::size_t step = 0; step < golden.losses.size(); ++step) {
    engine.step(source.source(), static_cast<std::int64_t>(step), config.optimizer.lr);
    const UpdateState& state = engine.state();
    const double loss = state.loss_sum / state.target_tokens;
    const double allowed = step == 0 ? tolerance.first_loss : tolerance.losses;
    EXPECT_NEAR(loss, golden.losses[step], allowed * golden.losses[step]) << "step " << step;
    EXPECT_NEAR(state.grad_norm, golden.grad_norms[step], 10 * allowed * golden.grad_norms[step]) << "step " << step;
  }
  const WholeTensors weights = whole(owned_state(engine));
  for (const GoldenParameter& parameter : golden.parameters)
    EXPECT_LE(relative_error(parameter.final_weight, weights.at(parameter.name).data()), tolerance.weights)
        << parameter.name;
}

}  // namespace trainer::test
