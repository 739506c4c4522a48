#include <gtest/gtest.h>

#include "kernels/ops.h"
#include "tests/kernels/host_tensor.h"
#include "tests/support/gradcheck.h"

namespace trainer::testing {
namespace {

const Context kCpu{};

struct Shape {
  std::int64_t tokens, inputs, outputs;
};
constexpr Shape kShapes[] = {{1, 1, 1}, {5, 7, 3}, {13, 4, 9}, {3, 17, 1}};

TEST(Linear, HandComputed) {
  HostTensor x(Dtype::f64, 2, 3), w(Dtype::f64, 2, 3), bias(Dtype::f64, 2, 1), y(Dtype::f64, 2, 2);
  for (std::int64_t i = 0; i < 6; ++i) {
    x.span()[static_cast<std::size_t>(i)] = static_cast<double>(i + 1);  // [[1, 2, 3], [4, 5, 6]]
    w.span()[static_cast<std::size_t>(i)] = i % 2 == 0 ? 1.0 : -2.0;     // [[1, -2, 1], [-2, 1, -2]]
  }
  bias.set(0, 0, 10);
  bias.set(1, 0, 20);
  ops::linear_forward(kCpu, {.x = x, .w = w, .bias = bias, .y = y});
  EXPECT_EQ(y.values(), (std::vector<double>{10, 14, 10, 5}));
  ops::linear_forward(kCpu, {.x = x, .w = w, .bias = bias, .y = y, .addend = y});
  EXPECT_EQ(y.values(), (std::vector<double>{20, 28, 20, 10}));
}

TEST(Linear, EqualsPlainLoops) {
  for (const Shape s : kShapes) {
    const HostTensor x = random_tensor(s.tokens, s.inputs, 1), w = random_tensor(s.outputs, s.inputs, 2);
    const HostTensor bias = random_tensor(s.outputs, 1, 3), before = random_tensor(s.tokens, s.outputs, 4);
    for (const bool with_bias : {false, true})
      for (const char* what : {"nothing", "y", "another"}) {
        HostTensor y = before;
        const std::string addend = what;
        if (addend == "another") y.fill(std::nan(""));
        ops::linear_forward(kCpu, {.x = x,
                                   .w = w,
                                   .bias = with_bias ? bias.tensor() : Tensor{},
                                   .y = y,
                                   .addend = addend == "nothing" ? Tensor{}
                                             : addend == "y"     ? y.tensor()
                                                                 : before.tensor()});
        for (std::int64_t n = 0; n < s.tokens; ++n)
          for (std::int64_t o = 0; o < s.outputs; ++o) {
            double expected = (addend != "nothing" ? before.get(n, o) : 0.0) + (with_bias ? bias.get(o, 0) : 0.0);
            for (std::int64_t i = 0; i < s.inputs; ++i) expected += x.get(n, i) * w.get(o, i);
            EXPECT_NEAR(y.get(n, o), expected, 1e-13);
          }
      }
  }
}

TEST(Linear, Gradients) {
  for (const Shape s : kShapes)
    for (const bool accumulate : {false, true}) {
      HostTensor x = random_tensor(s.tokens, s.inputs, 1), w = random_tensor(s.outputs, s.inputs, 2);
      HostTensor bias = random_tensor(s.outputs, 1, 3), y(Dtype::f64, s.tokens, s.outputs);
      const HostTensor dy = random_tensor(s.tokens, s.outputs, 4);
      const auto loss = [&] {
        ops::linear_forward(kCpu, {.x = x, .w = w, .bias = bias, .y = y});
        return dot(y, dy);
      };
      const auto start = [&](const HostTensor& like, std::uint64_t key) {
        return accumulate ? random_tensor(like.rows(), like.cols(), key)
                          : HostTensor(Dtype::f64, like.rows(), like.cols()).fill(std::nan(""));
      };
      const auto gradient = [&](const HostTensor& after, const HostTensor& before) {
        return accumulate ? minus(after, before) : after.values();
      };
      const HostTensor dx_before = start(x, 5), dw_before = start(w, 6), dbias_before = start(bias, 7);
      HostTensor dx = dx_before, dw = dw_before, dbias = dbias_before;
      ops::linear_backward_input(kCpu, {.dy = dy, .w = w, .dx = dx, .accumulate = accumulate});
      ops::linear_backward_weight(kCpu, {.dy = dy, .x = x, .dw = dw, .accumulate = accumulate, .dbias = dbias});
      EXPECT_TRUE(gradient_matches(x.span(), gradient(dx, dx_before), loss));
      EXPECT_TRUE(gradient_matches(w.span(), gradient(dw, dw_before), loss));
      EXPECT_TRUE(gradient_matches(bias.span(), gradient(dbias, dbias_before), loss));
    }
}

// f(x w^T + bias) and its gradient are those of the ops one after the other.
TEST(Linear, ActivationInTheProduct) {
  for (const Shape s : kShapes)
    for (const Activation kind : {Activation::gelu, Activation::gelu_tanh}) {
      const HostTensor x = random_tensor(s.tokens, s.inputs, 1), w = random_tensor(s.outputs, s.inputs, 2);
      const HostTensor bias = random_tensor(s.outputs, 1, 3);
      HostTensor y(Dtype::f64, s.tokens, s.outputs), y_alone = y, activated = y, expected = y;
      ops::linear_forward(kCpu, {.x = x, .w = w, .bias = bias, .y = y, .activated = activated, .activation = kind});
      ops::linear_forward(kCpu, {.x = x, .w = w, .bias = bias, .y = y_alone});
      ops::activation_forward(kCpu, {.kind = kind, .x = y_alone, .out = expected});
      EXPECT_TRUE(y.same_bits(y_alone));
      EXPECT_TRUE(activated.same_bits(expected));

      HostTensor input = random_tensor(s.tokens, s.inputs, 4), dinput(Dtype::f64, s.tokens, s.inputs);
      const HostTensor dy = random_tensor(s.tokens, s.outputs, 5);
      ops::linear_backward_input(kCpu, {.dy = dy, .w = w, .dx = dinput, .activation_input = input, .activation = kind});
      const auto loss = [&] {
        HostTensor f(Dtype::f64, s.tokens, s.inputs), out(Dtype::f64, s.tokens, s.outputs);
        ops::activation_forward(kCpu, {.kind = kind, .x = input, .out = f});
        ops::linear_forward(kCpu, {.x = f, .w = w, .y = out});
        return dot(out, dy);
      };
      EXPECT_TRUE(gradient_matches(input.span(), dinput.values(), loss));
    }
}

/// The float32 gradient, rounded once. More tokens than one tile of them.
TEST(Linear, WeightGradientInTheTypeOfTheWeights) {
  const std::int64_t tokens = 1500, inputs = 24, outputs = 17;
  for (const Dtype dtype : {Dtype::bf16, Dtype::f16}) {
    HostTensor x(dtype, tokens, inputs), dy(dtype, tokens, outputs);
    ops::cast(kCpu, {.in = random_tensor(tokens, inputs, 1), .out = x});
    ops::cast(kCpu, {.in = random_tensor(tokens, outputs, 2), .out = dy});
    HostTensor wide(Dtype::f32, outputs, inputs), dbias(Dtype::f32, outputs, 1);
    HostTensor expected(dtype, outputs, inputs), dw = expected, expected_dbias = dbias;
    ops::linear_backward_weight(kCpu, {.dy = dy, .x = x, .dw = wide, .accumulate = false, .dbias = expected_dbias});
    ops::cast(kCpu, {.in = wide, .out = expected});
    ops::linear_backward_weight(kCpu, {.dy = dy, .x = x, .dw = dw, .accumulate = false, .dbias = dbias});
    EXPECT_TRUE(dw.same_bits(expected));
    EXPECT_TRUE(dbias.same_bits(expected_dbias));
    EXPECT_THROW(ops::linear_backward_weight(kCpu, {.dy = dy, .x = x, .dw = dw}), Error) << "no sums in 16 bits";
  }
}

TEST(Linear, SixteenBitTilesCoverLargeShapes) {
  // More rows and outputs than one tile; small integers, so that every sum is exact in fp32 and in bf16.
  const std::int64_t tokens = 1030, inputs = 3, outputs = 1027;
  HostTensor x(Dtype::bf16, tokens, inputs), w(Dtype::bf16, outputs, inputs), y(Dtype::bf16, tokens, outputs);
  for (std::int64_t i = 0; i < inputs; ++i) {
    for (std::int64_t n = 0; n < tokens; ++n) x.set(n, i, static_cast<double>((n + i) % 5 - 2));
    for (std::int64_t o = 0; o < outputs; ++o) w.set(o, i, static_cast<double>((o + 2 * i) % 7 - 3));
  }
  HostTensor dx(Dtype::bf16, tokens, inputs), dw(Dtype::f32, outputs, inputs);
  ops::linear_forward(kCpu, {.x = x, .w = w, .y = y});
  ops::linear_backward_weight(kCpu, {.dy = y, .x = x, .dw = dw, .accumulate = false});
  std::int64_t wrong = 0;
  for (std::int64_t n = 0; n < tokens; ++n)
    for (std::int64_t o = 0; o < outputs; ++o) {
      double expected = 0;
      for (std::int64_t i = 0; i < inputs; ++i) expected += x.get(n, i) * w.get(o, i);
      wrong += y.get(n, o) != expected;
    }
  for (std::int64_t o = 0; o < outputs; ++o)
    for (std::int64_t i = 0; i < inputs; ++i) {
      double expected = 0;
      for (std::int64_t n = 0; n < tokens; ++n) expected += y.get(n, o) * x.get(n, i);
      wrong += dw.get(o, i) != expected;
    }
  EXPECT_EQ(wrong, 0);
}

TEST(Linear, RefusesShapesThatDoNotFit) {
  const HostTensor x = random_tensor(2, 3, 1), w = random_tensor(4, 5, 2), y = random_tensor(2, 4, 3);
  EXPECT_THROW(ops::linear_forward(kCpu, {.x = x, .w = w, .y = y}), Error);
  const HostTensor v = random_tensor(4, 3, 4), f = y, narrow_f = random_tensor(2, 3, 5);
  EXPECT_THROW(ops::linear_forward(kCpu, {.x = x, .w = v, .y = y, .activated = narrow_f}), Error);
  EXPECT_THROW(ops::linear_forward(kCpu, {.x = x, .w = v, .y = y, .addend = y, .activated = f}), Error);
  EXPECT_THROW(ops::linear_forward(kCpu, {.x = x, .w = v, .y = y, .activated = f, .activation = Activation::swiglu}),
               Error);
}

}  // namespace
}  // namespace trainer::testing
