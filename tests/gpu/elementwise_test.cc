#include <cmath>
#include <limits>

#include "tests/gpu/twin.h"

namespace trainer::testing {
namespace {

struct Shape {
  std::int64_t rows, cols;
};
const Shape kShapes[] = {{1, 1}, {3, 7}, {5, 64}, {2, 1000}, {37, 257}, {130, 768}};

/// Calls body for every element type, layout and shape.
template <class Body>
void for_each_case(const Body& body) {
  for (const Dtype dtype : gpu_dtypes())
    for (const Layout& layout : layouts())
      for (const Shape& shape : kShapes) {
        SCOPED_TRACE(::testing::Message() << dtype_name(dtype) << " [" << shape.rows << ", " << shape.cols
                                          << "] padding " << layout.padding << " first " << layout.first_col);
        body(dtype, layout, shape);
      }
}

TEST(GpuFill, EveryTypeAndLayout) {
  TRAINER_REQUIRE_GPU();
  for_each_case([](Dtype dtype, Layout layout, Shape shape) {
    for (const double value : {0.0, -1.2345678901234, 1.00390625, 1e-7, 65520.0}) {
      Twins twins;
      const Twin& x = twins.make("x", dtype, shape.rows, shape.cols, layout).fill(7).exact();
      twins.check([&](const Context& ctx) { ops::fill(ctx, {.x = x.tensor(ctx), .value = value}); });
    }
  });
  Twins twins;
  const Twin& sums = twins.make("sums", Dtype::f64, 1, 3).fill(7).exact();
  twins.check([&](const Context& ctx) {
    ops::fill(ctx, {.x = sums.tensor(ctx).col_range(1, 1), .value = std::numeric_limits<double>::infinity()});
  });
}

TEST(GpuCast, EveryPairOfTypes) {
  TRAINER_REQUIRE_GPU();
  for (const Dtype in_dtype : {Dtype::f64, Dtype::f32, Dtype::bf16, Dtype::f16})
    for_each_case([in_dtype](Dtype out_dtype, Layout layout, Shape shape) {
      Twins twins;
      Twin& in = twins.make("in", in_dtype, shape.rows, shape.cols, layout).randomise(1);
      in.set(0, 0, std::nan("")).set(shape.rows - 1, shape.cols - 1, 1e30);
      if (shape.cols > 6) in.set(0, 1, 1.0 + 0x1p-8 + 0x1p-40).set(0, 2, -1.0 - 0x1p-8).set(0, 3, 1e-6).set(0, 4, 3e-8);
      const Twin& out = twins.make("out", out_dtype, shape.rows, shape.cols, layout).fill(7).exact();
      twins.check([&](const Context& ctx) { ops::cast(ctx, {.in = in.tensor(ctx), .out = out.tensor(ctx)}); });
    });
}

TEST(GpuAdd, SeparateAndInPlace) {
  TRAINER_REQUIRE_GPU();
  for_each_case([](Dtype dtype, Layout layout, Shape shape) {
    Twins twins;
    const Twin& a = twins.make("a", dtype, shape.rows, shape.cols, layout).randomise(1).exact();
    const Twin& b = twins.make("b", dtype, shape.rows, shape.cols, layout).randomise(2).exact();
    const Twin& out = twins.make("out", dtype, shape.rows, shape.cols, layout).exact();
    twins.check([&](const Context& ctx) {
      ops::add(ctx, {.a = a.tensor(ctx), .b = b.tensor(ctx), .out = out.tensor(ctx)});
      ops::add(ctx, {.a = a.tensor(ctx), .b = b.tensor(ctx), .out = a.tensor(ctx)});
    });
  });
}

TEST(GpuSumParts, IntoOtherMemoryAndOntoAPart) {
  TRAINER_REQUIRE_GPU();
  for_each_case([](Dtype dtype, Layout layout, Shape shape) {
    for (const std::int64_t count : {1, 2, 5}) {
      Twins twins;
      const Twin& parts = twins.make("parts", dtype, count * shape.rows, shape.cols, layout).randomise(1).exact();
      const Twin& out = twins.make("out", dtype, shape.rows, shape.cols, layout).exact();
      const Twin& own = twins.make("own", dtype, shape.rows, shape.cols, layout).randomise(2).exact();
      const Twin& wide = twins.make("wide", Dtype::f32, shape.rows, shape.cols, layout).exact();
      twins.check([&](const Context& ctx) {
        const Tensor all = parts.tensor(ctx);
        for (const bool accumulate : {false, true})
          ops::sum_parts(ctx, {.parts = all, .accumulate = accumulate, .out = wide.tensor(ctx)});
        ops::sum_parts(
            ctx, {.parts = all, .own = own.tensor(ctx), .own_part = 0, .accumulate = true, .out = wide.tensor(ctx)});
        ops::sum_parts(ctx, {.parts = all, .out = out.tensor(ctx)});
        ops::sum_parts(ctx, {.parts = all, .accumulate = true, .out = out.tensor(ctx)});
        for (const std::int64_t part : {std::int64_t{0}, count - 1})
          ops::sum_parts(ctx, {.parts = all, .own = own.tensor(ctx), .own_part = part, .out = own.tensor(ctx)});
        ops::sum_parts(ctx, {.parts = all, .out = all.row_range((count - 1) * shape.rows, shape.rows)});
      });
    }
  });
}

TEST(GpuBias, AddAndSumColumns) {
  TRAINER_REQUIRE_GPU();
  for_each_case([](Dtype dtype, Layout layout, Shape shape) {
    for (const bool accumulate : {false, true}) {
      Twins twins;
      const Twin& x = twins.make("x", dtype, shape.rows, shape.cols, layout).randomise(1).exact();
      const Twin& bias = twins.make("bias", dtype, shape.cols, 1).randomise(2);
      const Twin& dbias = twins.make("dbias", Dtype::f32, shape.cols, 1).fill(accumulate ? 2.5 : std::nan(""));
      twins.check([&](const Context& ctx) {
        ops::bias_backward(ctx, {.dy = x.tensor(ctx), .dbias = dbias.tensor(ctx), .accumulate = accumulate});
        ops::add_bias(ctx, {.x = x.tensor(ctx), .bias = bias.tensor(ctx)});
      });
    }
  });
}

TEST(GpuBias, ManyRows) {
  TRAINER_REQUIRE_GPU();
  for (const Dtype dtype : gpu_dtypes()) {
    Twins twins;
    const Twin& dy = twins.make("dy", dtype, 5003, 72).randomise(1, 1.0, 0.3);
    const Twin& dbias = twins.make("dbias", Dtype::f32, 72, 1);
    twins.check([&](const Context& ctx) {
      ops::bias_backward(ctx, {.dy = dy.tensor(ctx), .dbias = dbias.tensor(ctx), .accumulate = false});
    });
  }
}

TEST(GpuDropout, DrawsTheMaskOfTheCpu) {
  TRAINER_REQUIRE_GPU();
  for_each_case([](Dtype dtype, Layout layout, Shape shape) {
    for (const double p : {0.1, 0.5}) {
      Twins twins;
      const Twin& x = twins.make("x", dtype, shape.rows, shape.cols, layout).randomise(1).exact();
      const Twin& out = twins.make("out", dtype, shape.rows, shape.cols, layout).fill(7).exact();
      twins.check([&](const Context& ctx) {
        ops::dropout(ctx, {.x = x.tensor(ctx), .out = out.tensor(ctx), .dropout = {p, 123456789}, .row_offset = 11});
      });
    }
  });
}

}  // namespace
}  // namespace trainer::testing
