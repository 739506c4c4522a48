// The whole model's gradient against finite differences in float64, for every parameter of every family.
#include <gtest/gtest.h>

#include "parallel/self_communicator.h"
#include "tests/support/engine_harness.h"
#include "tests/support/goldens.h"
#include "tests/support/gradcheck.h"

namespace trainer::test {
namespace {

/// A model small enough for differences of every element.
Config tiny(const std::string& family, const std::vector<std::string>& more) {
  std::vector<std::string> sets = {"model.hidden_size=16",      "model.head_dim=4",   "model.vocab_size=19",
                                   "model.intermediate_size=6", "train.seq_length=8", "train.micro_batch_size=2",
                                   "train.global_batch_size=2"};
  if (family == "neox") sets.emplace_back("model.rotary_pct=0.5");
  if (family == "mistral") sets.emplace_back("model.sliding_window=3");
  sets.insert(sets.end(), more.begin(), more.end());
  return family_config(family, sets, 1);
}

void check_all_gradients(const Config& config, const testing::GradcheckOptions& options = {}) {
  const FaultPlan no_fault;
  Engine engine(config, {}, std::make_unique<SelfCommunicator>("world"), no_fault);
  load_golden_weights(engine);
  SampleSource source(engine);
  engine.compute_gradients(source.source(), 0);
  const double tokens = static_cast<double>(config.train.global_batch_size * config.train.seq_length);
  const auto loss = [&] {  // the sum over targets, divided as the stored gradients are
    source.seek(0);
    engine.compute_gradients(source.source(), 0);
    return (engine.sums().loss + engine.sums().z_loss) / tokens;
  };
  const ParamLayout& layout = engine.model().layout();
  std::vector<std::vector<double>> gradients;  // copied before loss() overwrites them at other weights
  for (ParamId id = 0; id < layout.num_params(); ++id) {
    const ParamDecl& decl = layout.decl(id);
    const double* stored = layout.view(engine.sink().grads(engine.context(), decl.block).flat, id).as<double>();
    gradients.emplace_back(stored, stored + decl.rows * decl.cols);
  }
  for (ParamId id = 0; id < layout.num_params(); ++id) {
    const ParamDecl& decl = layout.decl(id);
    const Tensor weight = layout.view(engine.weights().acquire(engine.context(), decl.block), id);
    const std::vector<double>& gradient = gradients[static_cast<std::size_t>(id)];
    EXPECT_TRUE(testing::gradient_matches(std::span(weight.as<double>(), gradient.size()), gradient, loss, options))
        << decl.name;
  }
}

class GradientTest : public ::testing::TestWithParam<const char*> {};

TEST_P(GradientTest, EveryParameter) {
  check_all_gradients(tiny(GetParam(), {}));
}

TEST_P(GradientTest, WithDropoutAndZLoss) {
  check_all_gradients(
      tiny(GetParam(), {"model.hidden_dropout=0.2", "model.attention_dropout=0.3", "train.z_loss=0.01"}));
}

/// A smaller step: where a token sees few others the loss bends more.
TEST_P(GradientTest, WithDocuments) {
  check_all_gradients(tiny(GetParam(), {"data.intra_document_attention=true", "model.hidden_dropout=0.2"}),
                      {.step = 5e-4});
}

INSTANTIATE_TEST_SUITE_P(Families, GradientTest, ::testing::ValuesIn(kGoldenFamilies),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace trainer::test
