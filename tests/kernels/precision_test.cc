// float32 and 16-bit bodies against the float64 body on the same values.
#include <gtest/gtest.h>

#include "kernels/ops.h"
#include "tests/kernels/op_cases.h"

namespace trainer::testing {
namespace {

const Context kCpu{};

/// Half the distance between neighbouring values, relative, and absolute below the normal range.
struct Rounding {
  double relative, absolute;
};
Rounding rounding_of(Dtype dtype) {
  if (dtype == Dtype::bf16) return {0x1p-8, 0x1p-134};
  if (dtype == Dtype::f16) return {0x1p-11, 0x1p-25};
  return {0x1p-24, 0};
}

/// What sums of some dozens of terms cost in fp32, relative to the largest element.
constexpr double kFloatSums = 3e-6;

double largest(const HostTensor& t) {
  double max = 0;
  for (const double x : t.values()) max = std::max(max, std::abs(x));
  return max;
}

class Precision : public ::testing::TestWithParam<Dtype> {};

// Each element of type T is within half a unit of the last place of the float64 result (besides the error of fp32
// sums): it was rounded once, and from the right value. Strides are padded in one run and not in the other.
TEST_P(Precision, OneRoundingAwayFromFloat64OnStridedViews) {
  const Dtype dtype = GetParam();
  const Rounding rounding = rounding_of(dtype);
  for (const OpCase& c : op_cases())
    for (const std::int64_t tokens : {1, 13, 131}) {
      Workbench narrow(dtype, dtype, 3, tokens), wide(Dtype::f64, dtype, 0, tokens);
      const auto outputs = c.run(narrow), expected = c.run(wide);
      ASSERT_EQ(outputs.size(), expected.size());
      for (std::size_t o = 0; o < outputs.size(); ++o) {
        const HostTensor &value = outputs[o].value, &reference = expected[o].value;
        EXPECT_TRUE(value.gaps_intact()) << c.name << " wrote between the rows of " << outputs[o].name;
        const double noise = kFloatSums * largest(reference);
        for (std::int64_t n = 0; n < value.rows(); ++n)
          for (std::int64_t col = 0; col < value.cols(); ++col) {
            const double exact = reference.get(n, col);
            const double allowed =
                noise + (outputs[o].rounded ? rounding.relative * (std::abs(exact) + noise) + rounding.absolute : 0);
            ASSERT_NEAR(value.get(n, col), exact, allowed)
                << c.name << " " << outputs[o].name << "[" << n << ", " << col << "] of " << tokens << " tokens";
          }
      }
    }
}

// The branch is added and rounded, and the norm is that of the rounded sum.
TEST_P(Precision, NormSeesTheRoundedSum) {
  const Dtype dtype = GetParam();
  const std::int64_t tokens = 7, width = 33;
  Workbench w(dtype, dtype, 1, tokens);
  const HostTensor x = w.in(tokens, width), branch = w.in(tokens, width), weight = w.vector(width);
  HostTensor sum = w.out(tokens, width), out = sum, again = sum, rstd = w.sums(1, tokens), rstd_again = rstd;
  ops::add_norm_forward(kCpu, {.x = x, .branch = branch, .weight = weight, .sum = sum, .out = out, .rstd = rstd});
  for (std::int64_t n = 0; n < tokens; ++n)
    for (std::int64_t c = 0; c < width; ++c)
      EXPECT_EQ(sum.get(n, c), rounded_to(dtype, x.get(n, c) + branch.get(n, c)));
  ops::add_norm_forward(kCpu, {.x = sum, .weight = weight, .out = again, .rstd = rstd_again});
  EXPECT_TRUE(again.same_bits(out));
  EXPECT_TRUE(rstd_again.same_bits(rstd));
}

INSTANTIATE_TEST_SUITE_P(Types, Precision, ::testing::Values(Dtype::f32, Dtype::bf16, Dtype::f16),
                         [](const auto& type) { return std::string(dtype_name(type.param)); });

}  // namespace
}  // namespace trainer::testing
