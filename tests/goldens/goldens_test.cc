#include "tests/support/goldens.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <stdexcept>

namespace trainer::test {
namespace {

std::vector<double> weights_of(const GoldenParameter& parameter) {
  std::vector<double> values(static_cast<std::size_t>(parameter.rows * parameter.cols));
  fill_golden_weights(parameter.name, parameter.rows, parameter.cols, values.data());
  return values;
}

TEST(GoldenFormula, GivesPythonsBits) {
  const GoldenFormula formula = load_golden_formula();
  ASSERT_EQ(formula.values.size(), 12u);
  for (const auto& v : formula.values) EXPECT_EQ(golden_weight(v.name, v.index), v.value) << v.name << " " << v.index;
}

TEST(GoldenFormula, FillsRowMajorWithinRange) {
  std::vector<double> values(257 * 64);
  fill_golden_weights("lm_head.weight", 257, 64, values.data());
  EXPECT_EQ(values[5 * 64 + 3], golden_weight("lm_head.weight", 5 * 64 + 3));
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  EXPECT_GE(*low, -0.25);
  EXPECT_LT(*low, -0.249);
  EXPECT_LT(*high, 0.25);
  EXPECT_GT(*high, 0.249);
}

TEST(TensorCheck, AcceptsTheTensorItWasMadeOf) {
  const GoldenParameter tensor = load_golden_formula().tensor;
  EXPECT_EQ(tensor.final_weight.samples.size(), tensor.final_weight.indices.size());
  EXPECT_LT(tensor.final_weight.samples.size(), 65u);
  EXPECT_LT(relative_error(tensor.final_weight, weights_of(tensor).data()), 1e-14);
}

TEST(TensorCheck, EstimatesTheSizeOfAnError) {
  const GoldenParameter tensor = load_golden_formula().tensor;
  const std::vector<double> exact = weights_of(tensor);
  for (const double size : {1e-3, 1e-9}) {
    // An error in one element that is not sampled, and one spread over all elements.
    std::vector<double> single = exact, spread = exact;
    ASSERT_EQ(std::count(tensor.final_weight.indices.begin(), tensor.final_weight.indices.end(), 100), 0);
    single[100] += size;
    double squares = 0;
    for (std::size_t i = 0; i < spread.size(); ++i) {
      const double error = size * golden_weight("error", static_cast<std::int64_t>(i));
      spread[i] += error;
      squares += error * error;
    }
    const double of_single = error_norm(tensor.final_weight, single.data());
    const double of_spread = error_norm(tensor.final_weight, spread.data());
    EXPECT_GT(of_single, size / 2);
    EXPECT_LT(of_single, size * 2);
    EXPECT_GT(of_spread, std::sqrt(squares) / 2);
    EXPECT_LT(of_spread, std::sqrt(squares) * 2);
  }
}

TEST(TensorCheck, IsExactForSmallTensorsAndNotFooledByNan) {
  const Golden golden = load_golden("gpt2");
  const auto small = std::find_if(golden.parameters.begin(), golden.parameters.end(),
                                  [](const GoldenParameter& p) { return p.name == "model.norm.weight"; });
  ASSERT_NE(small, golden.parameters.end());
  ASSERT_EQ(small->gradient.samples.size(), 64u);
  std::vector<double> values = small->gradient.samples;
  EXPECT_EQ(error_norm(small->gradient, values.data()), 0.0);
  values[1] += 3e-3;
  values[2] -= 4e-3;
  EXPECT_NEAR(error_norm(small->gradient, values.data()), 5e-3, 1e-15);
  values[3] = std::numeric_limits<double>::quiet_NaN();
  EXPECT_FALSE(error_norm(small->gradient, values.data()) <= 1.0);

  const GoldenParameter large = load_golden_formula().tensor;
  std::vector<double> poisoned = weights_of(large);
  poisoned[100] = std::numeric_limits<double>::quiet_NaN();
  EXPECT_FALSE(error_norm(large.final_weight, poisoned.data()) <= 1.0);
}

TEST(Golden, MissingFileIsNamed) {
  try {
    load_golden("bert");
    FAIL() << "no error";
  } catch (const std::runtime_error& error) {
    EXPECT_NE(std::string(error.what()).find("bert.json"), std::string::npos) << error.what();
  }
}

class GoldenFile : public testing::TestWithParam<const char*> {};

TEST_P(GoldenFile, FitsTogether) {
  const Golden golden = load_golden(GetParam());
  EXPECT_EQ(golden.family, GetParam());
  const auto tokens = static_cast<std::size_t>(golden.batch_size * golden.seq_length);
  ASSERT_EQ(golden.batches.size(), 10u);
  for (const GoldenBatch& batch : golden.batches) {
    ASSERT_EQ(batch.token_ids.size(), tokens);
    ASSERT_EQ(batch.targets.size(), tokens);
    for (const std::int32_t id : batch.token_ids) EXPECT_TRUE(id >= 0 && id < golden.vocab_size) << id;
    for (const std::int32_t id : batch.targets) EXPECT_TRUE(id >= -1 && id < golden.vocab_size) << id;
    // Where it is not masked, the target is the next token of the sequence.
    for (std::size_t i = 0; i + 1 < tokens; ++i) {
      if ((i + 1) % static_cast<std::size_t>(golden.seq_length) != 0 && batch.targets[i] >= 0) {
        EXPECT_EQ(batch.targets[i], batch.token_ids[i + 1]);
      }
    }
  }
  const auto& targets = golden.batches[0].targets;
  EXPECT_EQ(std::count_if(targets.begin(), targets.end(), [](std::int32_t t) { return t >= 0; }), golden.target_tokens);
  EXPECT_EQ(golden.logits.size, golden.batch_size * golden.seq_length * golden.vocab_size);
  ASSERT_EQ(golden.losses.size(), 10u);
  ASSERT_EQ(golden.grad_norms.size(), 10u);
  EXPECT_EQ(golden.losses[0], golden.loss);
  EXPECT_NE(golden.config_yaml.find("model:\n  hidden_size: 64\n"), std::string::npos);
}

TEST_P(GoldenFile, GradientsMakeUpTheGradientNorm) {
  const Golden golden = load_golden(GetParam());
  double squares = 0;
  std::set<std::string> names;
  for (const GoldenParameter& p : golden.parameters) {
    EXPECT_EQ(p.gradient.size, p.rows * p.cols) << p.name;
    EXPECT_EQ(p.final_weight.size, p.rows * p.cols) << p.name;
    EXPECT_TRUE(names.insert(p.name).second) << p.name << " is there twice";
    squares += p.gradient.norm * p.gradient.norm;
  }
  EXPECT_NEAR(std::sqrt(squares), golden.grad_norms[0], 1e-13 * golden.grad_norms[0]);
}

TEST_P(GoldenFile, FinalWeightsAreTenSmallStepsFromTheInitialOnes) {
  const Golden golden = load_golden(GetParam());
  for (const GoldenParameter& p : golden.parameters) {
    const std::vector<double> initial = weights_of(p);
    const double moved = error_norm(p.final_weight, initial.data());
    // AdamW moves an element by about lr = 1e-3 a step, and by no gradient at all where decay alone acts.
    EXPECT_LT(moved, 2 * 10 * 1e-3 * std::sqrt(static_cast<double>(p.final_weight.size))) << p.name;
  }
}

TEST_P(GoldenFile, SinglePassIsNearUniformLoss) {
  const Golden golden = load_golden(GetParam());
  // Logits of standard deviation s around a uniform guess cost about log V + s^2 / 2.
  const double variance = golden.logits.norm * golden.logits.norm / static_cast<double>(golden.logits.size);
  EXPECT_NEAR(golden.loss, std::log(static_cast<double>(golden.vocab_size)) + variance / 2, 0.4);
  EXPECT_GT(variance, 0.1);
}

INSTANTIATE_TEST_SUITE_P(Families, GoldenFile, testing::ValuesIn(kGoldenFamilies),
                         [](const testing::TestParamInfo<const char*>& info) { return std::string(info.param); });

}  // namespace
}  // namespace trainer::test
