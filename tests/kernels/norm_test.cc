#include <gtest/gtest.h>

#include "kernels/ops.h"
#include "tests/kernels/host_tensor.h"
#include "tests/support/gradcheck.h"

namespace trainer::testing {
namespace {

const Context kCpu{};

TEST(Norm, LayerNormHandComputed) {
  // Row 1, 2, 3, 6: mean 3, variance (4 + 1 + 0 + 9) / 4 = 3.5.
  HostTensor x(Dtype::f64, 1, 4), weight(Dtype::f64, 4, 1), bias(Dtype::f64, 4, 1), out(Dtype::f64, 1, 4);
  HostTensor mean(Dtype::f64, 1, 1), rstd(Dtype::f64, 1, 1);
  const double row[] = {1, 2, 3, 6};
  for (std::int64_t c = 0; c < 4; ++c) x.set(0, c, row[c]);
  weight.fill(2);
  bias.fill(0.5);
  ops::add_norm_forward(kCpu, {.kind = NormKind::layernorm,
                               .eps = 0.5,
                               .x = x,
                               .weight = weight,
                               .bias = bias,
                               .out = out,
                               .mean = mean,
                               .rstd = rstd});
  EXPECT_DOUBLE_EQ(mean.get(0, 0), 3);
  EXPECT_DOUBLE_EQ(rstd.get(0, 0), 0.5);
  EXPECT_EQ(out.values(), (std::vector<double>{-1.5, -0.5, 0.5, 3.5}));
}

TEST(Norm, RmsNormHandComputedWithBranch) {
  // Sum 1, 1, 1, 3: mean square 12 / 4 = 3; eps 1.
  HostTensor x(Dtype::f64, 1, 4), branch(Dtype::f64, 1, 4), weight(Dtype::f64, 4, 1), out(Dtype::f64, 1, 4);
  HostTensor sum(Dtype::f64, 1, 4), rstd(Dtype::f64, 1, 1);
  x.fill(2);
  branch.fill(-1);
  branch.set(0, 3, 1);
  weight.fill(4);
  ops::add_norm_forward(kCpu, {.kind = NormKind::rmsnorm,
                               .eps = 1,
                               .x = x,
                               .branch = branch,
                               .weight = weight,
                               .sum = sum,
                               .out = out,
                               .rstd = rstd});
  EXPECT_EQ(sum.values(), (std::vector<double>{1, 1, 1, 3}));
  EXPECT_DOUBLE_EQ(rstd.get(0, 0), 0.5);
  EXPECT_EQ(out.values(), (std::vector<double>{2, 2, 2, 6}));
}

TEST(Norm, ALargeMeanCostsLayerNormNoDigits) {
  HostTensor x(Dtype::f32, 1, 64), weight(Dtype::f32, 64, 1), out(Dtype::f32, 1, 64), mean(Dtype::f32, 1, 1);
  HostTensor rstd(Dtype::f32, 1, 1);
  weight.fill(1);
  for (std::int64_t c = 0; c < 64; ++c) x.set(0, c, 4096.0 + (c % 2 == 0 ? 1 : -1));
  ops::add_norm_forward(
      kCpu,
      {.kind = NormKind::layernorm, .eps = 1e-5, .x = x, .weight = weight, .out = out, .mean = mean, .rstd = rstd});
  for (std::int64_t c = 0; c < 64; ++c) EXPECT_NEAR(out.get(0, c), c % 2 == 0 ? 1 : -1, 1e-5);
}

TEST(Norm, SumMayBeX) {
  const HostTensor branch = random_tensor(3, 5, 2), weight = random_tensor(5, 1, 3);
  HostTensor x = random_tensor(3, 5, 1), separate(Dtype::f64, 3, 5), out = separate, out_in_place = separate;
  HostTensor rstd(Dtype::f64, 1, 3);
  ops::add_norm_forward(kCpu, {.x = x, .branch = branch, .weight = weight, .sum = separate, .out = out, .rstd = rstd});
  ops::add_norm_forward(kCpu,
                        {.x = x, .branch = branch, .weight = weight, .sum = x, .out = out_in_place, .rstd = rstd});
  EXPECT_TRUE(x.same_bits(separate));
  EXPECT_TRUE(out.same_bits(out_in_place));
}

struct NormCase {
  NormKind kind;
  bool branch, bias, residual, accumulate;
};

// The loss sees the norm's output, and the sum by another way when there is a residual gradient.
void check_norm(const NormCase& c, std::int64_t tokens, std::int64_t width) {
  const bool layernorm = c.kind == NormKind::layernorm;
  HostTensor x = random_tensor(tokens, width, 1), branch = random_tensor(tokens, width, 2);
  HostTensor weight = random_tensor(width, 1, 3), bias = random_tensor(width, 1, 4);
  HostTensor sum(Dtype::f64, tokens, width), out = sum, mean(Dtype::f64, 1, tokens), rstd = mean;
  const HostTensor dout = random_tensor(tokens, width, 5), dresidual = random_tensor(tokens, width, 6);
  const auto loss = [&] {
    ops::add_norm_forward(kCpu, {.kind = c.kind,
                                 .eps = 0.1,
                                 .x = x,
                                 .branch = c.branch ? branch.tensor() : Tensor{},
                                 .weight = weight,
                                 .bias = c.bias ? bias.tensor() : Tensor{},
                                 .sum = sum,
                                 .out = out,
                                 .mean = layernorm ? mean.tensor() : Tensor{},
                                 .rstd = rstd});
    return dot(out, dout) + (c.residual ? dot(sum, dresidual) : 0.0);
  };
  loss();
  HostTensor dx(Dtype::f64, tokens, width), dweight = random_tensor(width, 1, 7), dbias = random_tensor(width, 1, 8);
  if (!c.accumulate) {
    dweight.fill(std::nan(""));
    dbias.fill(std::nan(""));
  }
  const HostTensor dweight_before = dweight, dbias_before = dbias;
  ops::norm_backward(kCpu, {.kind = c.kind,
                            .dout = dout,
                            .sum = sum,
                            .weight = weight,
                            .mean = layernorm ? mean.tensor() : Tensor{},
                            .rstd = rstd,
                            .dresidual = c.residual ? dresidual.tensor() : Tensor{},
                            .dx = dx,
                            .dweight = dweight,
                            .dbias = c.bias ? dbias.tensor() : Tensor{},
                            .accumulate = c.accumulate});
  const auto gradient = [&](const HostTensor& after, const HostTensor& before) {
    return c.accumulate ? minus(after, before) : after.values();
  };
  EXPECT_TRUE(gradient_matches(x.span(), dx.span(), loss));
  if (c.branch) {
    EXPECT_TRUE(gradient_matches(branch.span(), dx.span(), loss));
  }
  EXPECT_TRUE(gradient_matches(weight.span(), gradient(dweight, dweight_before), loss));
  if (c.bias) {
    EXPECT_TRUE(gradient_matches(bias.span(), gradient(dbias, dbias_before), loss));
  }
}

TEST(Norm, GradientsWithEveryOptionalArgument) {
  for (const NormKind kind : {NormKind::layernorm, NormKind::rmsnorm})
    for (int bits = 0; bits < 16; ++bits) {
      const NormCase c{kind, (bits & 1) != 0, (bits & 2) != 0, (bits & 4) != 0, (bits & 8) != 0};
      SCOPED_TRACE(::testing::Message() << "layernorm " << (kind == NormKind::layernorm) << " options " << bits);
      check_norm(c, 3, 7);
      check_norm(c, 5, 2);
    }
}

TEST(Norm, BackwardMayOverwriteItsInputs) {
  const std::int64_t tokens = 4, width = 9;
  const HostTensor sum = random_tensor(tokens, width, 1), weight = random_tensor(width, 1, 2);
  HostTensor rstd = random_tensor(1, tokens, 3), dweight(Dtype::f64, width, 1), expected(Dtype::f64, tokens, width);
  const auto run = [&](Tensor dout, Tensor dresidual, Tensor dx) {
    ops::norm_backward(kCpu, {.kind = NormKind::rmsnorm,
                              .dout = dout,
                              .sum = sum,
                              .weight = weight,
                              .rstd = rstd,
                              .dresidual = dresidual,
                              .dx = dx,
                              .dweight = dweight,
                              .accumulate = false});
  };
  HostTensor dout = random_tensor(tokens, width, 4), dresidual = random_tensor(tokens, width, 5);
  run(dout, dresidual, expected);
  const HostTensor dweight_expected = dweight;
  HostTensor overwritten = dresidual;
  run(dout, overwritten, overwritten);
  EXPECT_TRUE(overwritten.same_bits(expected));
  overwritten = dout;
  run(overwritten, dresidual, overwritten);
  EXPECT_TRUE(overwritten.same_bits(expected));
  EXPECT_TRUE(dweight.same_bits(dweight_expected));
}

TEST(HeadNorm, IsRmsNormOfEachHead) {
  const std::int64_t tokens = 3, heads = 4, head_dim = 5;
  const HostTensor x = random_tensor(tokens, heads * head_dim, 1), weight = random_tensor(head_dim, 1, 2);
  HostTensor out(Dtype::f64, tokens, heads * head_dim), rstd(Dtype::f64, tokens, heads);
  ops::head_norm_forward(kCpu, {.eps = 0.1, .heads = heads, .x = x, .weight = weight, .out = out, .rstd = rstd});
  for (std::int64_t n = 0; n < tokens; ++n)
    for (std::int64_t h = 0; h < heads; ++h) {
      double squares = 0;
      for (std::int64_t d = 0; d < head_dim; ++d) squares += std::pow(x.get(n, h * head_dim + d), 2);
      const double expected = 1 / std::sqrt(squares / static_cast<double>(head_dim) + 0.1);
      EXPECT_NEAR(rstd.get(n, h), expected, 1e-14);
      for (std::int64_t d = 0; d < head_dim; ++d)
        EXPECT_NEAR(out.get(n, h * head_dim + d), x.get(n, h * head_dim + d) * expected * weight.get(d, 0), 1e-14);
    }
}

TEST(HeadNorm, Gradients) {
  const std::int64_t tokens = 3, heads = 2, head_dim = 5;
  HostTensor x = random_tensor(tokens, heads * head_dim, 1), weight = random_tensor(head_dim, 1, 2);
  HostTensor out(Dtype::f64, tokens, heads * head_dim), rstd(Dtype::f64, tokens, heads);
  const HostTensor dout = random_tensor(tokens, heads * head_dim, 3);
  const auto loss = [&] {
    ops::head_norm_forward(kCpu, {.eps = 0.1, .heads = heads, .x = x, .weight = weight, .out = out, .rstd = rstd});
    return dot(out, dout);
  };
  for (const bool accumulate : {false, true}) {
    loss();
    HostTensor dx = dout;  // overwrites dout, as the interface allows
    HostTensor dweight(Dtype::f64, head_dim, 1);
    dweight.fill(accumulate ? 3.0 : std::nan(""));
    ops::head_norm_backward(kCpu, {.heads = heads,
                                   .dout = dx,
                                   .x = x,
                                   .weight = weight,
                                   .rstd = rstd,
                                   .dx = dx,
                                   .dweight = dweight,
                                   .accumulate = accumulate});
    if (accumulate)
      for (double& g : dweight.span()) g -= 3.0;
    EXPECT_TRUE(gradient_matches(x.span(), dx.span(), loss));
    EXPECT_TRUE(gradient_matches(weight.span(), dweight.span(), loss));
  }
}

}  // namespace
}  // namespace trainer::testing
