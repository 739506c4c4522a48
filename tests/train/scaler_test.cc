// fp16 and bf16: an overflow on exactly one rank is skipped by all, in every layout; the state stays the same
// everywhere.
#include <gtest/gtest.h>

#include "optim/update_state.h"
#include "tests/support/engine_harness.h"
#include "tests/support/mpi_world.h"

namespace trainer::test {
namespace {

std::vector<std::string> layout_sets(int dp, int tp, bool sequence_parallel, int zero) {
  return {fmt::format("parallelism.data_parallel_size={}", dp),
          fmt::format("parallelism.tensor_parallel_size={}", tp),
          fmt::format("parallelism.sequence_parallel={}", sequence_parallel),
          fmt::format("parallelism.zero_stage={}", zero),
          "train.global_batch_size=8",
          fmt::format("train.micro_batch_size={}", 8 / dp / 2)};
}

std::vector<std::vector<std::string>> all_layouts() {
  std::vector<std::vector<std::string>> all;
  const int ranks = test_world().size();
  for (const int tp : {1, 2, 4}) {
    if (ranks % tp != 0) continue;
    const int dp = ranks / tp;
    for (const int zero : {0, 1, 2, 3})
      if (zero == 0 || dp > 1) all.push_back(layout_sets(dp, tp, tp > 1 && zero == 1, zero));
    if (tp > 1) all.push_back(layout_sets(dp, tp, true, 0));
  }
  return all;
}

/// True when every rank has the same value.
bool same_everywhere(double value) {
  double low = value, high = value;
  test_world().all_reduce({}, tensor_over(&low, Dtype::f64, 1, 1), ReduceOp::min);
  test_world().all_reduce({}, tensor_over(&high, Dtype::f64, 1, 1), ReduceOp::max);
  return low == high;
}

std::vector<std::vector<double>> state_of(Engine& engine) {
  std::vector<std::vector<double>> values;
  for (OwnedValues& part : owned_state(engine, /*copies=*/true)) values.push_back(std::move(part.values));
  return values;
}

/// Trains four steps with an infinity on the last rank at step 2 (counted from 1).
void overflow_on_one_rank(const std::vector<std::string>& layout, const std::string& precision) {
  std::vector<std::string> sets = layout;
  sets.push_back("precision.dtype=" + precision);
  const Config config = family_config("qwen3", sets, test_world().size());
  SCOPED_TRACE(precision + " " + layout[0] + " " + layout[1] + " " + layout[2] + " " + layout[3]);
  FaultPlan fault = FaultPlan::parse(fmt::format("rank={},step=2,site=gradients,action=inf", test_world().size() - 1));
  fault.set_rank(test_world().rank(), test_world().size());
  Engine engine(config, {}, new_test_world(), fault);
  load_golden_weights(engine);
  SampleSource source(engine);
  const double initial_scale = uses_loss_scaling(config.precision) ? 65536.0 : 1.0;
  std::vector<std::vector<double>> before;
  for (std::int64_t step = 0; step < 4; ++step) {
    fault.set_step(step + 1);
    if (step == 1) before = state_of(engine);
    engine.step(source.source(), step, 1e-3);
    const UpdateState& state = engine.state();
    EXPECT_EQ(state.skipped, step == 1 ? 1 : 0) << "step " << step;
    EXPECT_EQ(state.updates, step == 0 ? 1 : step) << "a skipped step is no update of Adam's";
    const double scale = step >= 1 && uses_loss_scaling(config.precision) ? initial_scale / 2 : initial_scale;
    EXPECT_EQ(state.loss_scale, scale);
    EXPECT_TRUE(same_everywhere(state.loss_scale));
    EXPECT_TRUE(same_everywhere(static_cast<double>(state.first_bad)));
    if (step != 1) {
      EXPECT_TRUE(same_everywhere(state.grad_norm));
      EXPECT_EQ(state.first_bad, kNoBadTensor);
    } else {
      EXPECT_LT(state.first_bad, engine.model().layout().num_params()) << "the culprit has a name";
      EXPECT_EQ(state_of(engine), before) << "a skipped step changes no bit";
    }
  }
}

TEST(Scaler, OverflowOnOneRankIsSkippedByAll) {
  for (const auto& layout : all_layouts())
    for (const char* precision : {"fp16", "bf16"}) overflow_on_one_rank(layout, precision);
}

/// Weights that several ranks hold have the same bits on all of them, after steps in 16-bit precision.
TEST(Scaler, ReplicasStayEqual) {
  for (const auto& layout : all_layouts()) {
    std::vector<std::string> sets = layout;
    sets.emplace_back("precision.dtype=bf16");
    const Config config = family_config("llama3", sets, test_world().size());
    const FaultPlan no_fault;
    Engine engine(config, {}, new_test_world(), no_fault);
    load_golden_weights(engine);
    SampleSource source(engine);
    for (std::int64_t step = 0; step < 3; ++step) engine.step(source.source(), step, 1e-2);
    const ParamLayout& params = engine.model().layout();
    for (ParamId id = 0; id < params.num_params(); ++id) {
      const ParamDecl& decl = params.decl(id);
      const Tensor weight = params.view(engine.weights().acquire(engine.context(), decl.block), id);
      double sum = 0.0;
      for (std::int64_t i = 0; i < weight.numel(); ++i)
        sum += static_cast<double>(i + 1) * static_cast<double>(static_cast<float>(weight.as<Bfloat16>()[i]));
      engine.weights().release(engine.context(), decl.block);
      // Ranks with the same part of the parameter agree: all of dp, and all of tp for replicated ones.
      double low = sum, high = sum;
      Communicator& holders = decl.split == ParamSplit::replicated ? engine.mesh().world() : engine.mesh().dp();
      holders.all_reduce({}, tensor_over(&low, Dtype::f64, 1, 1), ReduceOp::min);
      holders.all_reduce({}, tensor_over(&high, Dtype::f64, 1, 1), ReduceOp::max);
      EXPECT_EQ(low, high) << decl.name;
    }
  }
}

/// An overflow at every step backs the scale off to its floor, and the run ends there, naming step and tensor.
TEST(Scaler, FloorEndsTheRun) {
  std::vector<std::string> sets = all_layouts().front();
  sets.insert(sets.end(),
              {"precision.dtype=fp16", "precision.loss_scale.init_scale=8", "precision.loss_scale.min_scale=1"});
  const Config config = family_config("llama3", sets, test_world().size());
  FaultPlan fault = FaultPlan::parse("rank=0,site=gradients,action=nan,tensor=model.layers.0.mlp.up_proj.weight");
  fault.set_rank(test_world().rank(), test_world().size());
  Engine engine(config, {}, new_test_world(), fault);
  load_golden_weights(engine);
  SampleSource source(engine);
  std::string message;
  std::int64_t step = 0;
  for (; step < 10 && message.empty(); ++step) {
    try {
      engine.step(source.source(), step, 1e-3);
      check_divergence(config, engine.state(), engine.model().layout());
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ExitCode::diverged);
      message = e.what();
    }
  }
  EXPECT_EQ(step, 4) << "8 -> 4 -> 2 -> 1, and the fourth overflow finds the scale at its floor";
  EXPECT_NE(message.find("model.layers.0.mlp.up_proj.weight"), std::string::npos) << message;
  EXPECT_EQ(engine.state().updates, 0);
}

}  // namespace
}  // namespace trainer::test
