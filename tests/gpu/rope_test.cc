#include <cmath>

#include "tests/gpu/twin.h"

namespace trainer::testing {
namespace {

TEST(GpuRope, RotatesAndBack) {
  TRAINER_REQUIRE_GPU();
  struct Case {
    std::int64_t tokens, heads, head_dim, rotated;
  };
  for (const Dtype dtype : gpu_dtypes())
    for (const Layout& layout : layouts())
      for (const Case& c : {Case{1, 1, 2, 2}, Case{9, 3, 64, 64}, Case{20, 5, 96, 24}, Case{65, 8, 128, 128},
                            Case{7, 2, 80, 20}, Case{11, 9, 14, 6}})
        for (const bool inverse : {false, true}) {
          SCOPED_TRACE(::testing::Message() << dtype_name(dtype) << " head " << c.head_dim << " rotated " << c.rotated
                                            << " padding " << layout.padding << " inverse " << inverse);
          constexpr std::int64_t kPositions = 50;
          Twins twins;
          const Twin& x = twins.make("x", dtype, c.tokens, c.heads * c.head_dim, layout).randomise(1);
          Twin& positions = twins.make("positions", Dtype::i32, 1, c.tokens);
          for (std::int64_t n = 0; n < c.tokens; ++n) positions.set(0, n, static_cast<double>(n * 7 % kPositions));
          Twin& table = twins.make("table", Dtype::f32, kPositions, c.rotated);
          for (std::int64_t p = 0; p < kPositions; ++p)
            for (std::int64_t i = 0; i < c.rotated / 2; ++i) {
              const double angle = static_cast<double>(p) / std::pow(100.0, static_cast<double>(i) / 10);
              table.set(p, i, std::cos(angle)).set(p, c.rotated / 2 + i, std::sin(angle));
            }
          twins.check([&](const Context& ctx) {
            ops::rope(ctx, {.x = x.tensor(ctx),
                            .positions = positions.tensor(ctx),
                            .cos_sin = table.tensor(ctx),
                            .heads = c.heads,
                            .inverse = inverse});
          });
        }
}

}  // namespace
}  // namespace trainer::testing
