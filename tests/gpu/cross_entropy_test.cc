#include <cmath>
#include <limits>

#include "core/runtime/rng.h"
#include "tests/gpu/twin.h"

namespace trainer::testing {
namespace {

struct Case {
  std::int64_t tokens, cols, valid_cols;
  int parts;
  double z_loss;
  bool backward;
};

/// `parts` ranks, each with `cols` columns of which the last rank's beyond valid_cols are padding; this rank is the
/// last.
void check(const Case& c, Dtype dtype, const Layout& layout) {
  const std::int64_t first_col = (c.parts - 1) * c.cols;
  Twins twins;
  const Twin& logits = twins.make("logits", dtype, c.tokens, c.cols, layout).randomise(1, 4.0);
  Twin& targets = twins.make("targets", Dtype::i32, 1, c.tokens);
  for (std::int64_t n = 0; n < c.tokens; ++n) {
    const double u = static_cast<double>(uniform_at(5, static_cast<std::uint64_t>(n)));
    targets.set(0, n, n % 5 == 3 ? kIgnoredTarget : std::floor(u * static_cast<double>(first_col + c.valid_cols)));
  }
  Twin& stats = twins.make("stats", Dtype::f32, c.parts * c.tokens, 3);
  for (std::int64_t row = 0; row < (c.parts - 1) * c.tokens; ++row)
    stats.set(row, 0, 3.0).set(row, 1, 20.0).set(row, 2, row % 2 == 0 ? 1.5 : 0.0);
  const Twin& sums = twins.make("sums", Dtype::f64, 1, 3).fill(1.0).loosen(1e6);  // stats are float32
  UpdateState initial;
  initial.loss_scale = 1024.0;
  const Twin& state = twins.make_state(initial);
  twins.check([&](const Context& ctx) {
    const Tensor mine = stats.tensor(ctx).row_range((c.parts - 1) * c.tokens, c.tokens);
    ops::cross_entropy_stats(ctx, {.logits = logits.tensor(ctx),
                                   .targets = targets.tensor(ctx),
                                   .stats = mine,
                                   .first_col = first_col,
                                   .valid_cols = c.valid_cols});
    ops::cross_entropy_finish(ctx, {.logits = logits.tensor(ctx),
                                    .targets = targets.tensor(ctx),
                                    .stats = stats.tensor(ctx),
                                    .sums = sums.tensor(ctx),
                                    .first_col = first_col,
                                    .valid_cols = c.valid_cols,
                                    .parts = c.parts,
                                    .grad_scale = 0.25,
                                    .z_loss = c.z_loss,
                                    .state = state_of(state, ctx),
                                    .backward = c.backward});
  });
}

TEST(GpuCrossEntropy, LossAndGradient) {
  TRAINER_REQUIRE_GPU();
  const Case cases[] = {{1, 1, 1, 1, 0, true},           {5, 17, 17, 1, 0, true},      {6, 64, 50, 2, 1e-3, true},
                        {40, 1000, 1000, 1, 1e-4, true}, {12, 5003, 4999, 3, 0, true}, {9, 50304, 50257, 1, 0, true},
                        {300, 257, 257, 1, 0, false},    {11, 24, 0, 2, 0, true}};
  for (const Dtype dtype : gpu_dtypes())
    for (const Layout& layout : layouts())
      for (const Case& c : cases) {
        SCOPED_TRACE(::testing::Message() << dtype_name(dtype) << " tokens " << c.tokens << " columns " << c.cols
                                          << " padding " << layout.padding);
        check(c, dtype, layout);
      }
}

/// Both halves in one: rows shorter and longer than shared memory, more and fewer of them than blocks.
void check_whole(const Case& c, Dtype dtype, const Layout& layout) {
  Twins twins;
  Twin& logits = twins.make("logits", dtype, c.tokens, c.cols, layout).randomise(1, 4.0);
  Twin& targets = twins.make("targets", Dtype::i32, 1, c.tokens);
  for (std::int64_t n = 0; n < c.tokens; ++n) {
    const double u = static_cast<double>(uniform_at(5, static_cast<std::uint64_t>(n)));
    targets.set(0, n, n % 5 == 3 ? kIgnoredTarget : std::floor(u * static_cast<double>(c.valid_cols)));
  }
  if (c.tokens > 3 && c.backward) logits.set(3, 0, std::nan(""));  // of an ignored target
  targets.set(0, 0, static_cast<double>(c.valid_cols - 1));
  const Twin& sums = twins.make("sums", Dtype::f64, 1, 3).fill(1.0).loosen(1e6);  // summed in float32
  UpdateState initial;
  initial.loss_scale = 1024.0;
  const Twin& state = twins.make_state(initial);
  twins.check([&](const Context& ctx) {
    ops::cross_entropy(ctx, {.logits = logits.tensor(ctx),
                             .targets = targets.tensor(ctx),
                             .sums = sums.tensor(ctx),
                             .valid_cols = c.valid_cols,
                             .grad_scale = 0.25,
                             .z_loss = c.z_loss,
                             .state = state_of(state, ctx),
                             .backward = c.backward});
  });
}

TEST(GpuCrossEntropy, WholeVocabulary) {
  TRAINER_REQUIRE_GPU();
  const Case cases[] = {{1, 1, 1, 1, 0, true},        {5, 17, 17, 1, 0, true},
                        {6, 64, 50, 1, 1e-3, true},   {700, 1000, 1000, 1, 1e-4, true},
                        {12, 5003, 4999, 1, 0, true}, {300, 257, 257, 1, 0, false},
                        {9, 50304, 50257, 1, 0, true}};
  for (const Dtype dtype : gpu_dtypes())
    for (const Layout& layout : layouts())
      for (const Case& c : cases) {
        SCOPED_TRACE(::testing::Message() << dtype_name(dtype) << " tokens " << c.tokens << " columns " << c.cols
                                          << " padding " << layout.padding);
        check_whole(c, dtype, layout);
      }
  for (const Dtype dtype : gpu_dtypes()) {
    check_whole({300, 152003, 151936, 1, 1e-4, true}, dtype, {});
    check_whole({140, 128256, 128256, 1, 0, true}, dtype, {});
  }
}

TEST(GpuCrossEntropy, InfiniteAndNotFiniteLogits) {
  TRAINER_REQUIRE_GPU();
  const double infinity = std::numeric_limits<double>::infinity();
  for (const Dtype dtype : gpu_dtypes()) {
    Twins twins;
    Twin& logits = twins.make("logits", dtype, 3, 1200).randomise(1);
    for (std::int64_t c = 0; c < 1000; ++c) logits.set(0, c, -infinity);  // whole vectors that are masked
    logits.set(1, 700, std::nan(""));
    logits.set(2, 3, 90.0).set(2, 1100, -90.0);
    const Twin& targets = twins.make("targets", Dtype::i32, 1, 3).fill(1100);
    const Twin& stats = twins.make("stats", Dtype::f32, 3, 3);
    twins.check([&](const Context& ctx) {
      ops::cross_entropy_stats(ctx, {.logits = logits.tensor(ctx).row_range(0, 1),
                                     .targets = targets.tensor(ctx).col_range(0, 1),
                                     .stats = stats.tensor(ctx).row_range(0, 1),
                                     .valid_cols = 1200});
      ops::cross_entropy_stats(ctx, {.logits = logits.tensor(ctx).row_range(2, 1),
                                     .targets = targets.tensor(ctx).col_range(2, 1),
                                     .stats = stats.tensor(ctx).row_range(2, 1),
                                     .valid_cols = 1200});
    });
    // A NaN must reach the sum; which maximum stands beside it does not matter.
    Twins bad;
    Twin& row = bad.make("logits", dtype, 1, 1200).randomise(1);
    row.set(0, 700, std::nan(""));
    const Twin& bad_stats = bad.make("stats", Dtype::f32, 1, 3);
    const Twin& target = bad.make("targets", Dtype::i32, 1, 1).fill(3);
    bad.check([&](const Context& ctx) {
      ops::cross_entropy_stats(ctx, {.logits = row.tensor(ctx),
                                     .targets = target.tensor(ctx),
                                     .stats = bad_stats.tensor(ctx),
                                     .valid_cols = 1200});
    });
    EXPECT_TRUE(std::isnan(bad_stats.on_gpu(0, 1)));
  }
}

}  // namespace
}  // namespace trainer::testing
