// Linear layers on the card: the GEMM alone, with what rides in it, and with a kernel behind it.
#include <cmath>
#include <iostream>

#include "kernels/gemm_choices.h"
#include "tests/gpu/twin.h"

namespace trainer::testing {
namespace {

struct Shape {
  std::int64_t tokens, inputs, outputs;
};
/// The library's epilogues take the multiples of 8; the others are what is left to kernels of ours.
const Shape kShapes[] = {{1, 1, 1},     {5, 7, 3},      {16, 8, 24},   {37, 33, 65},
                         {64, 64, 128}, {130, 200, 72}, {257, 768, 96}};

/// Sums of some hundred products in another order, rounded to 16 bits here and there between the parts of an op.
constexpr double kSums = 4.0;

/// Times the choices of what runs inside: every algorithm and both ways must give the same.
class Tuning {
 public:
  Tuning() { set_gemm_tuning(gpu_context(), GemmTuning::time); }
  ~Tuning() { set_gemm_tuning(gpu_context(), GemmTuning::off); }
  Tuning(const Tuning&) = delete;
  Tuning& operator=(const Tuning&) = delete;
};

template <class Body>
void for_each_case(const Body& body) {
  for (const Dtype dtype : gpu_dtypes())
    for (const Layout& layout : layouts())
      for (const Shape& shape : kShapes) {
        SCOPED_TRACE(::testing::Message()
                     << dtype_name(dtype) << " " << shape.tokens << " x " << shape.inputs << " -> " << shape.outputs
                     << " padding " << layout.padding << " first " << layout.first_col);
        body(dtype, layout, shape);
      }
}

double scale_of(std::int64_t terms) {
  return 1.0 / std::sqrt(static_cast<double>(terms));
}

enum class Addend { none, y, like_y, wider };

void check_forward(Dtype dtype, Layout layout, const Shape& s, bool with_bias, Addend addend) {
  Twins twins;
  const Twin& x = twins.make("x", dtype, s.tokens, s.inputs, layout).randomise(1);
  const Twin& w = twins.make("w", dtype, s.outputs, s.inputs, layout).randomise(2, scale_of(s.inputs));
  const Twin& bias = twins.make("bias", dtype, s.outputs, 1).randomise(3);
  const Twin& y = twins.make("y", dtype, s.tokens, s.outputs, layout).randomise(4).loosen(kSums);
  const Layout wider{layout.padding + 8, layout.first_col};
  const Twin& other =
      twins.make("addend", dtype, s.tokens, s.outputs, addend == Addend::wider ? wider : layout).randomise(5);
  twins.check([&](const Context& ctx) {
    const Tensor all[] = {Tensor{}, y.tensor(ctx), other.tensor(ctx), other.tensor(ctx)};
    ops::linear_forward(ctx, {.x = x.tensor(ctx),
                              .w = w.tensor(ctx),
                              .bias = with_bias ? bias.tensor(ctx) : Tensor{},
                              .y = y.tensor(ctx),
                              .addend = all[static_cast<int>(addend)]});
  });
}

TEST(GpuLinear, Forward) {
  TRAINER_REQUIRE_GPU();
  for_each_case([](Dtype dtype, Layout layout, const Shape& s) {
    for (const bool with_bias : {false, true})
      for (const Addend addend : {Addend::none, Addend::y, Addend::like_y, Addend::wider})
        check_forward(dtype, layout, s, with_bias, addend);
  });
}

void check_activated(Dtype dtype, Layout layout, const Shape& s, Activation kind, bool with_bias) {
  Twins twins;
  const Twin& x = twins.make("x", dtype, s.tokens, s.inputs, layout).randomise(1);
  const Twin& w = twins.make("w", dtype, s.outputs, s.inputs, layout).randomise(2, scale_of(s.inputs));
  const Twin& bias = twins.make("bias", dtype, s.outputs, 1).randomise(3);
  const Twin& y = twins.make("y", dtype, s.tokens, s.outputs, layout).fill(7).loosen(kSums);
  const Twin& activated = twins.make("activated", dtype, s.tokens, s.outputs, layout).fill(7).loosen(kSums);
  twins.check([&](const Context& ctx) {
    ops::linear_forward(ctx, {.x = x.tensor(ctx),
                              .w = w.tensor(ctx),
                              .bias = with_bias ? bias.tensor(ctx) : Tensor{},
                              .y = y.tensor(ctx),
                              .activated = activated.tensor(ctx),
                              .activation = kind});
  });
}

TEST(GpuLinear, ForwardWithActivation) {
  TRAINER_REQUIRE_GPU();
  for_each_case([](Dtype dtype, Layout layout, const Shape& s) {
    for (const Activation kind : {Activation::gelu, Activation::gelu_tanh})
      for (const bool with_bias : {false, true}) check_activated(dtype, layout, s, kind, with_bias);
  });
}

void check_backward_input(Dtype dtype, Layout layout, const Shape& s, bool with_activation, Activation kind,
                          bool accumulate) {
  Twins twins;
  const Twin& dy = twins.make("dy", dtype, s.tokens, s.outputs, layout).randomise(1);
  const Twin& w = twins.make("w", dtype, s.outputs, s.inputs, layout).randomise(2, scale_of(s.outputs));
  const Twin& input = twins.make("input", dtype, s.tokens, s.inputs, layout).randomise(3, 1.5);
  const Twin& dx = twins.make("dx", dtype, s.tokens, s.inputs, layout).randomise(4).loosen(kSums);
  twins.check([&](const Context& ctx) {
    ops::linear_backward_input(ctx, {.dy = dy.tensor(ctx),
                                     .w = w.tensor(ctx),
                                     .dx = dx.tensor(ctx),
                                     .accumulate = accumulate,
                                     .activation_input = with_activation ? input.tensor(ctx) : Tensor{},
                                     .activation = kind});
  });
}

TEST(GpuLinear, BackwardInput) {
  TRAINER_REQUIRE_GPU();
  for_each_case([](Dtype dtype, Layout layout, const Shape& s) {
    for (const bool accumulate : {false, true})
      check_backward_input(dtype, layout, s, false, Activation::gelu_tanh, accumulate);
    for (const Activation kind : {Activation::gelu, Activation::gelu_tanh})
      check_backward_input(dtype, layout, s, true, kind, false);
  });
}

void check_backward_weight(Dtype dtype, Layout layout, const Shape& s, bool with_bias, bool accumulate, double mean,
                           Dtype gradient = Dtype::f32) {
  Twins twins;
  const Twin& dy = twins.make("dy", dtype, s.tokens, s.outputs, layout).randomise(1, 1.0, mean);
  const Twin& x = twins.make("x", dtype, s.tokens, s.inputs, layout).randomise(2);
  const double size = std::sqrt(static_cast<double>(s.tokens));
  Twin& dw = twins.make("dw", gradient, s.outputs, s.inputs).loosen(kSums).at_least(size);
  Twin& dbias = twins.make("dbias", Dtype::f32, s.outputs, 1).loosen(kSums).at_least(size);
  if (accumulate) {
    dw.randomise(3, size);
    dbias.randomise(4, size);
  } else {
    dw.fill(std::nan(""));
    dbias.fill(std::nan(""));
  }
  twins.check([&](const Context& ctx) {
    ops::linear_backward_weight(ctx, {.dy = dy.tensor(ctx),
                                      .x = x.tensor(ctx),
                                      .dw = dw.tensor(ctx),
                                      .accumulate = accumulate,
                                      .dbias = with_bias ? dbias.tensor(ctx) : Tensor{}});
  });
}

TEST(GpuLinear, BackwardWeight) {
  TRAINER_REQUIRE_GPU();
  for_each_case([](Dtype dtype, Layout layout, const Shape& s) {
    for (const bool with_bias : {false, true})
      for (const bool accumulate : {false, true}) check_backward_weight(dtype, layout, s, with_bias, accumulate, 0.0);
  });
}

TEST(GpuLinear, BackwardWeightInTheTypeOfTheWeights) {
  TRAINER_REQUIRE_GPU();
  for_each_case([](Dtype dtype, Layout layout, const Shape& s) {
    for (const bool with_bias : {false, true}) check_backward_weight(dtype, layout, s, with_bias, false, 0.0, dtype);
  });
}

/// Columns that do not average out: a sum kept in 16 bits would stop growing.
TEST(GpuLinear, BiasGradientOfManyTokens) {
  TRAINER_REQUIRE_GPU();
  for (const Dtype dtype : gpu_dtypes())
    for (const bool accumulate : {false, true})
      check_backward_weight(dtype, {}, {20011, 64, 72}, true, accumulate, 0.3);
}

/// What timing chooses, whatever that is on this card, computes the same; and the choices go through their text.
TEST(GpuLinear, TimedChoices) {
  TRAINER_REQUIRE_GPU();
  const Shape shape{512, 256, 384};
  {
    const Tuning tuning;
    for (const Dtype dtype : gpu_dtypes()) {
      for (const bool with_bias : {false, true}) check_activated(dtype, {}, shape, Activation::gelu_tanh, with_bias);
      check_backward_input(dtype, {}, shape, true, Activation::gelu_tanh, false);
      for (const bool accumulate : {false, true}) check_backward_weight(dtype, {}, shape, true, accumulate, 0.1);
      check_backward_weight(dtype, {}, shape, true, false, 0.1, dtype);
    }
  }
  const std::string choices = gemm_choices(gpu_context());
  EXPECT_GT(use_gemm_choices(gpu_context(), choices), 0);
  EXPECT_EQ(gemm_choices(gpu_context()), choices);
  for (const char* letters : {"=g:", "=h:", "=d:", "=s:", "+s:"})
    EXPECT_NE(choices.find(letters), std::string::npos) << "no choice for the epilogue " << letters;
  std::cout << choices;
}

}  // namespace
}  // namespace trainer::testing
