#include <gtest/gtest.h>

#include "kernels/ops.h"
#include "tests/kernels/host_tensor.h"
#include "tests/support/gradcheck.h"

namespace trainer::testing {
namespace {

const Context kCpu{};

double value(Activation kind, double x) {
  HostTensor in(Dtype::f64, 1, 1), out(Dtype::f64, 1, 1);
  in.fill(x);
  ops::activation_forward(kCpu, {.kind = kind, .x = in, .out = out});
  return out.get(0, 0);
}

TEST(Activation, TheFormulasAsTheyAreWritten) {
  for (const double x : {-3.0, -0.5, 0.0, 0.25, 1.0, 4.0}) {
    EXPECT_NEAR(value(Activation::gelu, x), 0.5 * x * (1 + std::erf(x / std::sqrt(2.0))), 1e-15);
    const double u = std::sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * x * x * x);
    EXPECT_NEAR(value(Activation::gelu_tanh, x), 0.5 * x * (1 + std::tanh(u)), 1e-15);
  }
}

TEST(Activation, KnownValues) {
  // Phi(1) = 0.841344746068542949 (tables of the normal distribution).
  EXPECT_NEAR(value(Activation::gelu, 1.0), 0.841344746068542949, 1e-15);
  EXPECT_NEAR(value(Activation::gelu, -1.0), 0.841344746068542949 - 1, 1e-15);
  // Phi(-10) = 7.61985302416052606e-24: the far tail keeps its digits.
  EXPECT_NEAR(value(Activation::gelu, -10.0) / -7.61985302416052606e-23, 1.0, 1e-13);
}

TEST(Activation, LimitsAreFinite) {
  for (const Activation kind : {Activation::gelu, Activation::gelu_tanh}) {
    HostTensor x(Dtype::f32, 1, 4), out(Dtype::f32, 1, 4), dx(Dtype::f32, 1, 4), one(Dtype::f32, 1, 4);
    one.fill(1);
    const double values[] = {-1e4, 1e4, -200, 200};
    for (std::int64_t c = 0; c < 4; ++c) x.set(0, c, values[c]);
    ops::activation_forward(kCpu, {.kind = kind, .x = x, .out = out});
    ops::activation_backward(kCpu, {.kind = kind, .x = x, .dout = one, .dx = dx});
    for (std::int64_t c = 0; c < 4; ++c) {
      EXPECT_EQ(out.get(0, c), values[c] > 0 ? values[c] : 0.0);
      EXPECT_EQ(dx.get(0, c), values[c] > 0 ? 1.0 : 0.0);
    }
  }
}

TEST(Activation, SwigluGatesTheSecondHalfByTheFirst) {
  const std::int64_t width = 5;
  const HostTensor x = random_tensor(3, 2 * width, 1, 2.0);
  HostTensor out(Dtype::f64, 3, width);
  ops::activation_forward(kCpu, {.kind = Activation::swiglu, .x = x, .out = out});
  for (std::int64_t n = 0; n < 3; ++n)
    for (std::int64_t c = 0; c < width; ++c) {
      const double gate = x.get(n, c);
      EXPECT_NEAR(out.get(n, c), gate / (1 + std::exp(-gate)) * x.get(n, width + c), 1e-14);
    }
}

TEST(Activation, Gradients) {
  for (const Activation kind : {Activation::gelu, Activation::gelu_tanh, Activation::swiglu}) {
    const std::int64_t width = 7, in_width = kind == Activation::swiglu ? 14 : 7;
    HostTensor x = random_tensor(5, in_width, 1, 2.0), out(Dtype::f64, 5, width), dx(Dtype::f64, 5, in_width);
    const HostTensor dout = random_tensor(5, width, 2);
    const auto loss = [&] {
      ops::activation_forward(kCpu, {.kind = kind, .x = x, .out = out});
      return dot(out, dout);
    };
    ops::activation_backward(kCpu, {.kind = kind, .x = x, .dout = dout, .dx = dx});
    EXPECT_TRUE(gradient_matches(x.span(), dx.span(), loss)) << static_cast<int>(kind);
    HostTensor in_place = x;
    ops::activation_backward(kCpu, {.kind = kind, .x = in_place, .dout = dout, .dx = in_place});
    EXPECT_TRUE(in_place.same_bits(dx));
  }
}

}  // namespace
}  // namespace trainer::testing
