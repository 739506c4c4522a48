#include <cmath>

#include "core/runtime/rng.h"
#include "tests/gpu/twin.h"

namespace trainer::testing {
namespace {

/// Ids with a long tail, some outside the rows first_row .. first_row + table, and many of one row.
void draw_ids(Twin& ids, std::int64_t tokens, std::int64_t first_row, std::int64_t table) {
  for (std::int64_t n = 0; n < tokens; ++n) {
    const double u = static_cast<double>(uniform_at(99, static_cast<std::uint64_t>(n)));
    ids.set(0, n, static_cast<double>(first_row) + std::floor(static_cast<double>(table + 2) * u * u * u) - 1);
  }
}

TEST(GpuEmbedding, ForwardAndBackward) {
  TRAINER_REQUIRE_GPU();
  struct Case {
    std::int64_t tokens, table, width, first_row;
  };
  for (const Dtype dtype : gpu_dtypes())
    for (const Layout& layout : layouts())
      for (const Case& c : {Case{1, 3, 8, 0}, Case{50, 11, 7, 100}, Case{700, 40, 136, 0}, Case{3000, 900, 264, 500}})
        for (const bool accumulate : {false, true}) {
          SCOPED_TRACE(::testing::Message() << dtype_name(dtype) << " tokens " << c.tokens << " width " << c.width
                                            << " padding " << layout.padding << " accumulate " << accumulate);
          Twins twins;
          Twin& ids = twins.make("ids", Dtype::i32, 1, c.tokens);
          draw_ids(ids, c.tokens, c.first_row, c.table);
          const Twin& weight = twins.make("weight", dtype, c.table, c.width, layout).randomise(1);
          const Twin& out = twins.make("out", dtype, c.tokens, c.width, layout).randomise(2).exact();
          const Twin& dout = twins.make("dout", dtype, c.tokens, c.width, layout).randomise(3);
          Twin& dweight = twins.make("dweight", Dtype::f32, c.table, c.width, layout);
          if (accumulate)
            dweight.randomise(4);
          else
            dweight.fill(std::nan(""));
          twins.check([&](const Context& ctx) {
            ops::embedding_forward(ctx, {.ids = ids.tensor(ctx),
                                         .weight = weight.tensor(ctx),
                                         .out = out.tensor(ctx),
                                         .first_row = c.first_row,
                                         .accumulate = accumulate});
            ops::embedding_backward(ctx, {.ids = ids.tensor(ctx),
                                          .dout = dout.tensor(ctx),
                                          .dweight = dweight.tensor(ctx),
                                          .first_row = c.first_row,
                                          .accumulate = accumulate});
          });
        }
}

TEST(GpuEmbedding, AllTokensAreOneWord) {
  TRAINER_REQUIRE_GPU();
  Twins twins;
  const Twin& ids = twins.make("ids", Dtype::i32, 1, 5000).fill(3);
  const Twin& dout = twins.make("dout", Dtype::bf16, 5000, 72).randomise(3);
  const Twin& dweight = twins.make("dweight", Dtype::f32, 5, 72).fill(1);
  twins.check([&](const Context& ctx) {
    ops::embedding_backward(
        ctx, {.ids = ids.tensor(ctx), .dout = dout.tensor(ctx), .dweight = dweight.tensor(ctx), .accumulate = true});
  });
}

TEST(GpuEmbedding, SegmentsGrowWhenTheWorkspaceIsSmall) {
  TRAINER_REQUIRE_GPU();
  Twins twins;
  Twin& ids = twins.make("ids", Dtype::i32, 1, 3000);
  draw_ids(ids, 3000, 0, 20);
  const Twin& dout = twins.make("dout", Dtype::bf16, 3000, 512).randomise(3);
  const Twin& dweight = twins.make("dweight", Dtype::f32, 20, 512).fill(1);
  twins.check([&](const Context& ctx) {
    Context small = ctx;
    small.workspace_bytes = std::min<std::int64_t>(ctx.workspace_bytes, 200000);
    ops::embedding_backward(
        small, {.ids = ids.tensor(ctx), .dout = dout.tensor(ctx), .dweight = dweight.tensor(ctx), .accumulate = true});
  });
}

}  // namespace
}  // namespace trainer::testing
