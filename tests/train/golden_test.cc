// Whole models against PyTorch: logits, every gradient, ten optimizer steps.
#include <gtest/gtest.h>

#include "tests/support/golden_check.h"
#include "tests/support/goldens.h"

namespace trainer::test {
namespace {

class GoldenTest : public ::testing::TestWithParam<const char*> {};

TEST_P(GoldenTest, Float64) {
  check_golden(GetParam(), {}, {"float64", 1e-12, 1e-12, 1e-16, 1e-12, 1e-12, 1e-10});
}
// In float32 Adam turns the rounding noise of near-zero gradients into full steps: after the first step losses agree to
// 1e-4 only, and final weights are compared loosely.
TEST_P(GoldenTest, Float32) {
  check_golden(GetParam(), {}, {"float32", 1e-5, 1e-5, 1e-8, 1e-5, 1e-4, 1e-2});
}

INSTANTIATE_TEST_SUITE_P(Families, GoldenTest, ::testing::ValuesIn(kGoldenFamilies),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace trainer::test
