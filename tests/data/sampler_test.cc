// The order of samples: a permutation in every epoch, another one each time, uniform.
#include "data/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "tests/data/shard_files.h"
#include "tests/support/errors.h"

namespace trainer {
namespace {

TEST(Sampler, WindowsShareOneTokenAndTheRestIsLeft) {
  EXPECT_EQ(num_windows(5, 4), 1);
  EXPECT_EQ(num_windows(8, 4), 1);
  EXPECT_EQ(num_windows(9, 4), 2);
  EXPECT_EQ(num_windows(1'000'000'000'001, 1000), 1'000'000'000);
  for (const std::int64_t tokens : {0, 1, 4})
    EXPECT_TRUE(mentions(error_of(ExitCode::data, [&] { num_windows(tokens, 4); }),
                         {fmt::format("data.train holds {} tokens", tokens), "takes 5", "seq_length 4"}));
  EXPECT_TRUE(mentions(error_of(ExitCode::data, [] { num_windows(4, 4, "data.validation"); }), {"data.validation"}));
}

TEST(Sampler, EveryEpochIsABijection) {
  std::set<std::int64_t> sizes{1009, 4096, 5040, 10007};
  for (std::int64_t n = 1; n <= 130; ++n) sizes.insert(n);
  for (std::int64_t power = 256; power <= 65536; power *= 4) sizes.insert({power - 1, power, power + 1});
  for (const std::int64_t n : sizes) {
    const Sampler sampler(42, n);
    for (const std::int64_t epoch : {0, 1, 1000}) {
      std::vector<bool> seen(static_cast<std::size_t>(n));
      for (std::int64_t i = 0; i < n; ++i) {
        const std::int64_t window = sampler.window(epoch * n + i);
        ASSERT_GE(window, 0);
        ASSERT_LT(window, n);
        ASSERT_FALSE(seen[static_cast<std::size_t>(window)])
            << n << " windows, epoch " << epoch << ": twice " << window;
        seen[static_cast<std::size_t>(window)] = true;
      }
    }
  }
}

TEST(Sampler, LargeSizesAreInRangeAndDoNotCollide) {
  for (const std::int64_t n : {(std::int64_t{1} << 31) + 1, (std::int64_t{1} << 40) - 1, std::int64_t{1} << 61}) {
    const Sampler sampler(7, n);
    std::set<std::int64_t> seen;
    for (std::int64_t i = 0; i < 20000; ++i) {
      const std::int64_t window = sampler.window(n / 2 + i);
      ASSERT_GE(window, 0);
      ASSERT_LT(window, n);
      seen.insert(window);
    }
    EXPECT_EQ(seen.size(), 20000);
    EXPECT_LT(*seen.begin(), n / 100);  // spread over all windows: 20000 draws miss 1 % with probability 1e-87
    EXPECT_GT(*seen.rbegin(), n - n / 100);
  }
}

TEST(Sampler, OrderFollowsFromSeedAndEpoch) {
  const std::int64_t n = 1000;
  const auto order = [&](std::uint64_t seed, std::int64_t epoch) {
    const Sampler sampler(seed, n);
    std::vector<std::int64_t> windows;
    for (std::int64_t i = 0; i < n; ++i) windows.push_back(sampler.window(epoch * n + i));
    return windows;
  };
  EXPECT_EQ(order(1, 3), order(1, 3));
  // Two independent permutations agree in one place on average (Poisson: 8 or more with probability 1e-5).
  const auto agreements = [](const std::vector<std::int64_t>& a, const std::vector<std::int64_t>& b) {
    int same = 0;
    for (std::size_t i = 0; i < a.size(); ++i) same += a[i] == b[i] ? 1 : 0;
    return same;
  };
  EXPECT_LT(agreements(order(1, 0), order(1, 1)), 8);
  EXPECT_LT(agreements(order(1, 1), order(1, 2)), 8);
  EXPECT_LT(agreements(order(1, 0), order(2, 0)), 8);
  std::vector<std::int64_t> identity;
  for (std::int64_t i = 0; i < n; ++i) identity.push_back(i);
  EXPECT_LT(agreements(order(1, 0), identity), 8);
}

/// Chi-square of counts that should all be `expected`, in standard deviations from its mean.
template <class Counts>
double chi_square_deviation(const Counts& counts, std::size_t cells, double expected) {
  double chi_square = static_cast<double>(cells - counts.size()) * expected;  // cells that never occurred
  for (const auto& [cell, count] : counts) chi_square += (count - expected) * (count - expected) / expected;
  const double freedom = static_cast<double>(cells - 1);
  return (chi_square - freedom) / std::sqrt(2 * freedom);
}

TEST(Sampler, AllOrdersOfAFewWindowsAreEquallyLikely) {
  const std::size_t orders[] = {0, 1, 2, 6, 24};
  for (const std::int64_t n : {2, 3, 4}) {
    const auto cells = orders[n];
    const Sampler sampler(99, n);
    std::map<std::vector<std::int64_t>, int> counts;
    for (std::int64_t epoch = 0; epoch < static_cast<std::int64_t>(cells) * 400; ++epoch) {
      std::vector<std::int64_t> order;
      for (std::int64_t i = 0; i < n; ++i) order.push_back(sampler.window(epoch * n + i));
      ++counts[order];
    }
    EXPECT_LT(std::abs(chi_square_deviation(counts, cells, 400)), 5) << n;
  }
}

TEST(Sampler, EveryPairOfWindowsIsEquallyLikelyAtEveryPairOfPlaces) {
  for (const std::int64_t n : {5, 10, 16, 37}) {
    const Sampler sampler(5, n);
    const auto cells = static_cast<std::size_t>(n * (n - 1));
    for (const auto& [a, b] : {std::pair<std::int64_t, std::int64_t>{0, 1}, {0, n - 1}, {n / 2, n - 2}}) {
      std::map<std::pair<std::int64_t, std::int64_t>, int> counts;
      for (std::int64_t epoch = 0; epoch < n * (n - 1) * 100; ++epoch)
        ++counts[{sampler.window(epoch * n + a), sampler.window(epoch * n + b)}];
      EXPECT_LT(std::abs(chi_square_deviation(counts, cells, 100)), 5) << n << " windows, places " << a << ", " << b;
    }
  }
}

TEST(Sampler, ValidationIsInOrderAndEnds) {
  const Sampler sampler = Sampler::in_order(3);
  EXPECT_EQ(sampler.windows(), 3);
  for (std::int64_t i = 0; i < 3; ++i) EXPECT_EQ(sampler.window(i), i);
  EXPECT_EQ(sampler.window(3), kNoWindow);
  EXPECT_EQ(sampler.window(1000), kNoWindow);
}

}  // namespace
}  // namespace trainer
