#include <gtest/gtest.h>

#include "kernels/ops.h"
#include "tests/kernels/host_tensor.h"
#include "tests/support/gradcheck.h"

namespace trainer::testing {
namespace {

const Context kCpu{};
constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Options {
  std::int64_t valid_cols = 0;
  double grad_scale = 1.0, z_loss = 0.0;
  const UpdateState* state = nullptr;
  bool backward = true;
};
struct Result {
  double loss, z_loss, tokens;
};

/// Both halves on the columns of one rank. The logits become their gradient.
Result run(HostTensor& logits, const HostIds& targets, const Options& o) {
  HostTensor stats(accumulator_dtype(logits.dtype()), logits.rows(), 3), sums(Dtype::f64, 1, 3);
  ops::cross_entropy_stats(kCpu, {.logits = logits, .targets = targets, .stats = stats, .valid_cols = o.valid_cols});
  ops::cross_entropy_finish(kCpu, {.logits = logits,
                                   .targets = targets,
                                   .stats = stats,
                                   .sums = sums,
                                   .valid_cols = o.valid_cols,
                                   .grad_scale = o.grad_scale,
                                   .z_loss = o.z_loss,
                                   .state = o.state,
                                   .backward = o.backward});
  return {sums.get(0, 0), sums.get(0, 1), sums.get(0, 2)};
}

const HostIds kTargets{2, kIgnoredTarget, 0, 6, 3};
constexpr std::int64_t kTokens = 5, kCols = 9, kValid = 7;

TEST(CrossEntropy, HandComputed) {
  // Logits 0, ln 2, ln 5: softmax 1/8, 2/8, 5/8.
  HostTensor logits(Dtype::f64, 1, 3);
  logits.set(0, 1, std::log(2.0));
  logits.set(0, 2, std::log(5.0));
  const HostIds target{1};
  const Result result = run(logits, target, {.valid_cols = 3, .grad_scale = 8, .z_loss = 0.5});
  const double lse = std::log(8.0);
  EXPECT_DOUBLE_EQ(result.loss, std::log(4.0));
  EXPECT_DOUBLE_EQ(result.z_loss, 0.5 * lse * lse);
  EXPECT_EQ(result.tokens, 1);
  EXPECT_NEAR(logits.get(0, 0), 1 * (1 + lse), 1e-14);
  EXPECT_NEAR(logits.get(0, 1), 2 * (1 + lse) - 8, 1e-14);
  EXPECT_NEAR(logits.get(0, 2), 5 * (1 + lse), 1e-14);
}

TEST(CrossEntropy, Gradient) {
  UpdateState state;
  state.loss_scale = 1024;
  for (const double z_loss : {0.0, 0.1})
    for (const UpdateState* s : {static_cast<const UpdateState*>(nullptr), static_cast<const UpdateState*>(&state)}) {
      HostTensor logits = random_tensor(kTokens, kCols, 1, 2.0), dlogits = logits;
      Options options{.valid_cols = kValid, .grad_scale = 0.25, .z_loss = z_loss, .state = s};
      run(dlogits, kTargets, options);
      options.backward = false;
      const double scale = 0.25 * (s != nullptr ? 1024 : 1);
      const auto loss = [&] {
        const Result r = run(logits, kTargets, options);
        return scale * (r.loss + r.z_loss);
      };
      EXPECT_TRUE(gradient_matches(logits.span(), dlogits.span(), loss));
    }
}

TEST(CrossEntropy, IgnoredTargetsAndPaddingAreExactlyZeroAndHarmless) {
  HostTensor logits = random_tensor(kTokens, kCols, 1), poisoned = logits;
  for (std::int64_t c = 0; c < kCols; ++c) poisoned.set(1, c, std::nan(""));  // the ignored token
  for (std::int64_t n = 0; n < kTokens; ++n)
    for (std::int64_t c = kValid; c < kCols; ++c) poisoned.set(n, c, kInfinity);
  const Options options{.valid_cols = kValid, .z_loss = 0.1};
  const Result clean = run(logits, kTargets, options), result = run(poisoned, kTargets, options);
  EXPECT_EQ(result.tokens, 4);
  EXPECT_EQ(result.loss, clean.loss);
  EXPECT_EQ(result.z_loss, clean.z_loss);
  EXPECT_TRUE(poisoned.same_bits(logits));
  for (std::int64_t c = 0; c < kCols; ++c) EXPECT_EQ(poisoned.get(1, c), 0);
  for (std::int64_t n = 0; n < kTokens; ++n)
    for (std::int64_t c = kValid; c < kCols; ++c) EXPECT_EQ(poisoned.get(n, c), 0);
}

TEST(CrossEntropy, WithoutBackwardTheLogitsStayAndTheSumsAdd) {
  const HostTensor before = random_tensor(kTokens, kCols, 1);
  HostTensor logits = before, stats(Dtype::f64, kTokens, 3), sums(Dtype::f64, 1, 3);
  ops::cross_entropy_stats(kCpu, {.logits = logits, .targets = kTargets, .stats = stats, .valid_cols = kValid});
  const auto finish = [&] {
    ops::cross_entropy_finish(kCpu, {.logits = logits,
                                     .targets = kTargets,
                                     .stats = stats,
                                     .sums = sums,
                                     .valid_cols = kValid,
                                     .z_loss = 0.5,
                                     .backward = false});
  };
  finish();
  const std::vector<double> once = sums.values();
  finish();
  EXPECT_TRUE(logits.same_bits(before));
  for (std::int64_t i = 0; i < 3; ++i) EXPECT_DOUBLE_EQ(sums.get(0, i), 2 * once[static_cast<std::size_t>(i)]);
}

TEST(CrossEntropy, StatsSayMaxSumAndTarget) {
  HostTensor logits = random_tensor(kTokens, kCols, 1), stats(Dtype::f64, kTokens, 3);
  ops::cross_entropy_stats(
      kCpu, {.logits = logits, .targets = kTargets, .stats = stats, .first_col = 3, .valid_cols = kValid});
  for (std::int64_t n = 0; n < kTokens; ++n) {
    double max = -kInfinity, sum = 0;
    for (std::int64_t c = 0; c < kValid; ++c) max = std::max(max, logits.get(n, c));
    for (std::int64_t c = 0; c < kValid; ++c) sum += std::exp(logits.get(n, c) - max);
    EXPECT_EQ(stats.get(n, 0), max);
    EXPECT_NEAR(stats.get(n, 1), sum, 1e-14);
    // Columns 3 .. 9 are here: targets 6 and 3 are columns 3 and 0; 2 and 0 are elsewhere.
    const double target = n == 3 ? logits.get(n, 3) : n == 4 ? logits.get(n, 0) : 0.0;
    EXPECT_EQ(stats.get(n, 2), target);
  }
}

TEST(CrossEntropy, PartsOfTheVocabularyEqualTheWhole) {
  // Seven real columns on ranks of 4 columns each: the second has 3 real ones, the third none.
  const HostTensor all = random_tensor(kTokens, 12, 1, 3.0);
  HostTensor whole = all, parts = all, sums(Dtype::f64, 1, 3), stats(Dtype::f64, 3 * kTokens, 3);
  const Result expected = run(whole, kTargets, {.valid_cols = 7, .grad_scale = 0.5, .z_loss = 0.01});
  const auto valid = [](int part) { return std::int64_t{part == 0 ? 4 : part == 1 ? 3 : 0}; };
  for (int part = 0; part < 3; ++part)
    ops::cross_entropy_stats(kCpu, {.logits = parts.tensor().col_range(4 * part, 4),
                                    .targets = kTargets,
                                    .stats = stats.tensor().row_range(part * kTokens, kTokens),
                                    .first_col = 4 * part,
                                    .valid_cols = valid(part)});
  EXPECT_EQ(stats.get(2 * kTokens, 0), -kInfinity);
  EXPECT_EQ(stats.get(2 * kTokens, 1), 0);
  for (int part = 0; part < 3; ++part) {
    sums.fill(0);
    ops::cross_entropy_finish(kCpu, {.logits = parts.tensor().col_range(4 * part, 4),
                                     .targets = kTargets,
                                     .stats = stats,
                                     .sums = sums,
                                     .first_col = 4 * part,
                                     .valid_cols = valid(part),
                                     .parts = 3,
                                     .grad_scale = 0.5,
                                     .z_loss = 0.01});
    EXPECT_NEAR(sums.get(0, 0), expected.loss, 1e-13);
    EXPECT_NEAR(sums.get(0, 1), expected.z_loss, 1e-13);
    EXPECT_EQ(sums.get(0, 2), expected.tokens);
  }
  for (std::size_t i = 0; i < whole.span().size(); ++i) EXPECT_NEAR(parts.span()[i], whole.span()[i], 1e-15);
}

TEST(CrossEntropy, BothHalvesInOneHaveTheirBits) {
  UpdateState state;
  state.loss_scale = 64;
  for (const Dtype dtype : {Dtype::f64, Dtype::f32, Dtype::bf16})
    for (const bool backward : {false, true}) {
      HostTensor halves(dtype, kTokens, kCols), sums(Dtype::f64, 1, 3);
      const HostTensor values = random_tensor(kTokens, kCols, 1, 2.0);
      for (std::int64_t n = 0; n < kTokens; ++n)
        for (std::int64_t c = 0; c < kCols; ++c) halves.set(n, c, values.get(n, c));
      HostTensor whole = halves;
      const Options o{.valid_cols = kValid, .grad_scale = 0.25, .z_loss = 0.1, .state = &state, .backward = backward};
      const Result expected = run(halves, kTargets, o);
      ops::cross_entropy(kCpu, {.logits = whole,
                                .targets = kTargets,
                                .sums = sums,
                                .valid_cols = o.valid_cols,
                                .grad_scale = o.grad_scale,
                                .z_loss = o.z_loss,
                                .state = o.state,
                                .backward = o.backward});
      EXPECT_TRUE(whole.same_bits(halves));
      EXPECT_EQ(sums.get(0, 0), expected.loss);
      EXPECT_EQ(sums.get(0, 1), expected.z_loss);
      EXPECT_EQ(sums.get(0, 2), expected.tokens);
    }
}

TEST(CrossEntropy, LargeLogitsDoNotOverflowAndKeepTheirDigits) {
  // In float32 at 1e4 an lse has an error of 1e-3; the softmax must not inherit it.
  HostTensor logits(Dtype::f32, 1, 2);
  logits.set(0, 0, 10000);
  logits.set(0, 1, 10001);
  const HostIds target{0};
  run(logits, target, {.valid_cols = 2});
  const double p = 1 / (1 + std::exp(1.0));
  EXPECT_NEAR(logits.get(0, 0), p - 1, 1e-7);
  EXPECT_NEAR(logits.get(0, 1), 1 - p, 1e-7);
}

TEST(CrossEntropy, NonFiniteLogitsReachTheLoss) {
  for (const double bad : {std::nan(""), kInfinity}) {
    HostTensor logits = random_tensor(1, 4, 1);
    logits.set(0, 2, bad);
    const HostIds target{1};
    EXPECT_FALSE(std::isfinite(run(logits, target, {.valid_cols = 4}).loss));
  }
}

}  // namespace
}  // namespace trainer::testing
