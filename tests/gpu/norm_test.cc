#include <cmath>

#include "tests/gpu/twin.h"

namespace trainer::testing {
namespace {

struct NormCase {
  NormKind kind;
  bool branch, bias, residual, accumulate;
};

void check_norm(const NormCase& c, Dtype dtype, const Layout& layout, std::int64_t tokens, std::int64_t width) {
  const bool layernorm = c.kind == NormKind::layernorm;
  Twins twins;
  const Twin& x = twins.make("x", dtype, tokens, width, layout).randomise(1, 1.0, layernorm ? 3.0 : 0.0);
  const Twin& branch = twins.make("branch", dtype, tokens, width, layout).randomise(2);
  const Twin& weight = twins.make("weight", dtype, width, 1).randomise(3, 0.3, 1.0);
  const Twin& bias = twins.make("bias", dtype, width, 1).randomise(4);
  const Twin& sum = twins.make("sum", dtype, tokens, width, layout).fill(7).exact();
  const Twin& out = twins.make("out", dtype, tokens, width, layout).fill(7);
  const Twin& mean = twins.make("mean", Dtype::f32, 1, tokens).fill(7);
  const Twin& rstd = twins.make("rstd", Dtype::f32, 1, tokens).fill(7);
  const Twin& dout = twins.make("dout", dtype, tokens, width, layout).randomise(5);
  const Twin& dresidual = twins.make("dresidual", dtype, tokens, width, layout).randomise(6);
  const Twin& dx = twins.make("dx", dtype, tokens, width, layout).fill(7);
  const double before = c.accumulate ? 2.0 : std::nan("");
  // The CPU adds the squares of a row one after another in float32.
  const Twin& dweight = twins.make("dweight", Dtype::f32, width, 1).fill(before).loosen(width > 8192 ? 5 : 1);
  const Twin& dbias = twins.make("dbias", Dtype::f32, width, 1).fill(before);
  twins.check([&](const Context& ctx) {
    ops::add_norm_forward(ctx, {.kind = c.kind,
                                .eps = 1e-5,
                                .x = x.tensor(ctx),
                                .branch = c.branch ? branch.tensor(ctx) : Tensor{},
                                .weight = weight.tensor(ctx),
                                .bias = c.bias ? bias.tensor(ctx) : Tensor{},
                                .sum = sum.tensor(ctx),
                                .out = out.tensor(ctx),
                                .mean = layernorm ? mean.tensor(ctx) : Tensor{},
                                .rstd = rstd.tensor(ctx)});
    ops::norm_backward(ctx, {.kind = c.kind,
                             .dout = dout.tensor(ctx),
                             .sum = sum.tensor(ctx),
                             .weight = weight.tensor(ctx),
                             .mean = layernorm ? mean.tensor(ctx) : Tensor{},
                             .rstd = rstd.tensor(ctx),
                             .dresidual = c.residual ? dresidual.tensor(ctx) : Tensor{},
                             .dx = dx.tensor(ctx),
                             .dweight = dweight.tensor(ctx),
                             .dbias = c.bias && layernorm ? dbias.tensor(ctx) : Tensor{},
                             .accumulate = c.accumulate});
  });
}

TEST(GpuNorm, EveryOptionalArgument) {
  TRAINER_REQUIRE_GPU();
  for (const Dtype dtype : gpu_dtypes())
    for (const NormKind kind : {NormKind::layernorm, NormKind::rmsnorm})
      for (int bits = 0; bits < 16; ++bits) {
        const NormCase c{kind, (bits & 1) != 0, (bits & 2) != 0, (bits & 4) != 0, (bits & 8) != 0};
        SCOPED_TRACE(::testing::Message()
                     << dtype_name(dtype) << " layernorm " << (kind == NormKind::layernorm) << " options " << bits);
        check_norm(c, dtype, {}, 5, 136);
        check_norm(c, dtype, {}, 3, 17);
      }
}

TEST(GpuNorm, EveryWidthAndLayout) {
  TRAINER_REQUIRE_GPU();
  for (const Dtype dtype : gpu_dtypes())
    for (const NormKind kind : {NormKind::layernorm, NormKind::rmsnorm})
      for (const Layout& layout : layouts())
        for (const std::int64_t width : {1, 8, 100, 512, 768, 1001, 1600, 2048}) {
          SCOPED_TRACE(::testing::Message() << dtype_name(dtype) << " layernorm " << (kind == NormKind::layernorm)
                                            << " width " << width << " padding " << layout.padding);
          check_norm({kind, true, true, true, true}, dtype, layout, 7, width);
        }
}

TEST(GpuNorm, WideRows) {
  TRAINER_REQUIRE_GPU();
  for (const Dtype dtype : gpu_dtypes())
    for (const NormKind kind : {NormKind::layernorm, NormKind::rmsnorm})
      for (const std::int64_t width : {3072, 4096, 5120, 8192, 16384}) {
        if (dtype == Dtype::f32 && width > 8192) continue;
        SCOPED_TRACE(::testing::Message() << dtype_name(dtype) << " width " << width);
        check_norm({kind, true, true, true, true}, dtype, {}, 9, width);
      }
}

TEST(GpuNorm, ManyRows) {
  TRAINER_REQUIRE_GPU();
  for (const Dtype dtype : gpu_dtypes())
    for (const NormKind kind : {NormKind::layernorm, NormKind::rmsnorm})
      for (const std::int64_t width : {64, 776}) {
        SCOPED_TRACE(::testing::Message() << dtype_name(dtype) << " width " << width);
        check_norm({kind, true, true, true, false}, dtype, {}, 2501, width);
      }
}

TEST(GpuNorm, InPlace) {
  TRAINER_REQUIRE_GPU();
  const std::int64_t tokens = 300, width = 1024;
  for (const Dtype dtype : gpu_dtypes())
    for (const bool over_dout : {false, true}) {
      Twins twins;
      const Twin& x = twins.make("x, sum", dtype, tokens, width).randomise(1).exact();
      const Twin& branch = twins.make("branch", dtype, tokens, width).randomise(2);
      const Twin& weight = twins.make("weight", dtype, width, 1).randomise(3);
      const Twin& out = twins.make("out", dtype, tokens, width);
      const Twin& rstd = twins.make("rstd", Dtype::f32, 1, tokens);
      const Twin& dout = twins.make("dout", dtype, tokens, width).randomise(5);
      const Twin& dresidual = twins.make("dresidual", dtype, tokens, width).randomise(6);
      const Twin& dweight = twins.make("dweight", Dtype::f32, width, 1);
      twins.check([&](const Context& ctx) {
        ops::add_norm_forward(ctx, {.x = x.tensor(ctx),
                                    .branch = branch.tensor(ctx),
                                    .weight = weight.tensor(ctx),
                                    .sum = x.tensor(ctx),
                                    .out = out.tensor(ctx),
                                    .rstd = rstd.tensor(ctx)});
        ops::norm_backward(ctx, {.kind = NormKind::rmsnorm,
                                 .dout = dout.tensor(ctx),
                                 .sum = x.tensor(ctx),
                                 .weight = weight.tensor(ctx),
                                 .rstd = rstd.tensor(ctx),
                                 .dresidual = dresidual.tensor(ctx),
                                 .dx = over_dout ? dout.tensor(ctx) : dresidual.tensor(ctx),
                                 .dweight = dweight.tensor(ctx),
                                 .accumulate = false});
      });
    }
}

TEST(GpuHeadNorm, ForwardAndBackward) {
  TRAINER_REQUIRE_GPU();
  struct Case {
    std::int64_t tokens, heads, head_dim;
  };
  for (const Dtype dtype : gpu_dtypes())
    for (const Layout& layout : layouts())
      for (const Case& c : {Case{1, 1, 5}, Case{7, 3, 64}, Case{33, 5, 80}, Case{300, 4, 128}, Case{5, 2, 256}})
        for (const bool accumulate : {false, true}) {
          SCOPED_TRACE(::testing::Message() << dtype_name(dtype) << " tokens " << c.tokens << " head " << c.head_dim
                                            << " padding " << layout.padding << " accumulate " << accumulate);
          Twins twins;
          const std::int64_t width = c.heads * c.head_dim;
          const Twin& x = twins.make("x", dtype, c.tokens, width, layout).randomise(1);
          const Twin& weight = twins.make("weight", dtype, c.head_dim, 1).randomise(2, 0.3, 1.0);
          const Twin& out = twins.make("out", dtype, c.tokens, width, layout).fill(7);
          const Twin& rstd = twins.make("rstd", Dtype::f32, c.tokens, c.heads);
          const Twin& dout = twins.make("dout, dx", dtype, c.tokens, width, layout).randomise(3);
          const Twin& dweight = twins.make("dweight", Dtype::f32, c.head_dim, 1).fill(accumulate ? 2.0 : std::nan(""));
          twins.check([&](const Context& ctx) {
            ops::head_norm_forward(ctx, {.eps = 1e-6,
                                         .heads = c.heads,
                                         .x = x.tensor(ctx),
                                         .weight = weight.tensor(ctx),
                                         .out = out.tensor(ctx),
                                         .rstd = rstd.tensor(ctx)});
            ops::head_norm_backward(ctx, {.heads = c.heads,
                                          .dout = dout.tensor(ctx),
                                          .x = x.tensor(ctx),
                                          .weight = weight.tensor(ctx),
                                          .rstd = rstd.tensor(ctx),
                                          .dx = dout.tensor(ctx),
                                          .dweight = dweight.tensor(ctx),
                                          .accumulate = accumulate});
          });
        }
}

}  // namespace
}  // namespace trainer::testing
