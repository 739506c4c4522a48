#include <cmath>

#include "tests/gpu/twin.h"

namespace trainer::testing {
namespace {

constexpr Activation kKinds[] = {Activation::gelu, Activation::gelu_tanh, Activation::swiglu};

TEST(GpuActivation, ForwardAndBackward) {
  TRAINER_REQUIRE_GPU();
  struct Shape {
    std::int64_t rows, cols;
  };
  for (const Dtype dtype : gpu_dtypes())
    for (const Layout& layout : layouts())
      for (const Shape& s : {Shape{1, 1}, Shape{3, 7}, Shape{5, 64}, Shape{37, 257}, Shape{130, 768}})
        for (const Activation kind : kKinds)
          for (const bool in_place : {false, true}) {
            SCOPED_TRACE(::testing::Message() << dtype_name(dtype) << " kind " << static_cast<int>(kind) << " ["
                                              << s.rows << ", " << s.cols << "] padding " << layout.padding);
            const std::int64_t width = kind == Activation::swiglu ? 2 * s.cols : s.cols;
            Twins twins;
            const Twin& x = twins.make("x", dtype, s.rows, width, layout).randomise(1, 2.0);
            const Twin& out = twins.make("out", dtype, s.rows, s.cols, layout).fill(7);
            const Twin& dout = twins.make("dout", dtype, s.rows, s.cols, layout).randomise(2);
            const Twin& dx = twins.make("dx", dtype, s.rows, width, layout).fill(7);
            twins.check([&](const Context& ctx) {
              ops::activation_forward(ctx, {.kind = kind, .x = x.tensor(ctx), .out = out.tensor(ctx)});
              ops::activation_backward(ctx, {.kind = kind,
                                             .x = x.tensor(ctx),
                                             .dout = dout.tensor(ctx),
                                             .dx = in_place ? x.tensor(ctx) : dx.tensor(ctx)});
            });
          }
}

TEST(GpuActivation, LargeAndNotFiniteInputs) {
  TRAINER_REQUIRE_GPU();
  for (const Dtype dtype : gpu_dtypes())
    for (const Activation kind : {Activation::gelu, Activation::gelu_tanh}) {
      SCOPED_TRACE(::testing::Message() << dtype_name(dtype) << " kind " << static_cast<int>(kind));
      Twins twins;
      Twin& x = twins.make("x", dtype, 1, 64);
      for (std::int64_t c = 0; c < 62; ++c) x.set(0, c, static_cast<double>(c - 31) * 1.7);
      x.set(0, 62, std::nan("")).set(0, 63, 30000.0);
      const Twin& out = twins.make("out", dtype, 1, 64);
      const Twin& dout = twins.make("dout", dtype, 1, 64).fill(1);
      const Twin& dx = twins.make("dx", dtype, 1, 64);
      twins.check([&](const Context& ctx) {
        ops::activation_forward(ctx, {.kind = kind, .x = x.tensor(ctx), .out = out.tensor(ctx)});
        ops::activation_backward(ctx,
                                 {.kind = kind, .x = x.tensor(ctx), .dout = dout.tensor(ctx), .dx = dx.tensor(ctx)});
      });
    }
}

}  // namespace
}  // namespace trainer::testing
