#include "core/runtime/rng.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <set>
#include <vector>

namespace trainer {
namespace {

TEST(Philox, KnownAnswersOfRandom123) {
  // philox4x32, 10 rounds, of the known-answer file of the authors' library Random123: counter, key, result.
  struct Answer {
    std::uint64_t counter_lo, counter_hi, key;
    std::uint32_t result[4];
  };
  // Words are little end first: 0x243f6a88, 0x85a308d3 is the low counter 0x85a308d3243f6a88.
  const Answer answers[] = {
      {0, 0, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
      {~0ull, ~0ull, ~0ull, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
      {0x85a308d3243f6a88, 0x0370734413198a2e, 0x299f31d0a4093822, {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}}};
  for (const Answer& a : answers) {
    const Philox4 block = philox(a.key, a.counter_lo, a.counter_hi);
    for (int i = 0; i < 4; ++i) EXPECT_EQ(block.v[i], a.result[i]) << "word " << i;
  }
}

TEST(Uniform, IsTheWordOfItsBlockIn24Bits) {
  const std::uint64_t key = 123;
  for (std::uint64_t i = 0; i < 40; ++i) {
    const std::uint32_t word = philox(key, i / 4).v[i % 4];
    EXPECT_EQ(static_cast<double>(uniform_at(key, i)), std::floor(word / 256.0) / 16777216.0);
  }
  EXPECT_EQ(uniform_from_bits(0), 0.0f);
  EXPECT_EQ(uniform_from_bits(0xffffffffu), 1.0f - 0x1p-24f);
}

TEST(Uniform, MomentsAndBuckets) {
  const int n = 1 << 18;
  double sum = 0, squares = 0;
  int buckets[16] = {};
  for (int i = 0; i < n; ++i) {
    const double u = uniform_at(7, static_cast<std::uint64_t>(i));
    sum += u;
    squares += u * u;
    ++buckets[static_cast<int>(u * 16)];
  }
  EXPECT_NEAR(sum / n, 0.5, 4 * std::sqrt(1.0 / 12 / n));
  EXPECT_NEAR(squares / n, 1.0 / 3, 4 * std::sqrt(4.0 / 45 / n));
  for (const int count : buckets) EXPECT_NEAR(count, n / 16.0, 4.5 * std::sqrt(n / 16.0));
}

TEST(Normal, MomentsTailsAndNeighbours) {
  const int n = 1 << 18;
  double sum = 0, squares = 0, cubes = 0, fourths = 0, products = 0, before = 0;
  int beyond_two = 0;
  for (int i = 0; i < n; ++i) {
    const double x = normal_at(11, static_cast<std::uint64_t>(i));
    sum += x;
    squares += x * x;
    cubes += x * x * x;
    fourths += x * x * x * x;
    products += x * before;
    beyond_two += std::abs(x) > 2;
    before = x;
  }
  // Four standard errors each: variances of x, x^2, x^3, x^4 and of x y are 1, 2, 15, 96 and 1.
  const double error = 4 / std::sqrt(static_cast<double>(n));
  EXPECT_NEAR(sum / n, 0, error);
  EXPECT_NEAR(squares / n, 1, error * std::sqrt(2));
  EXPECT_NEAR(cubes / n, 0, error * std::sqrt(15));
  EXPECT_NEAR(fourths / n, 3, error * std::sqrt(96));
  EXPECT_NEAR(products / n, 0, error);
  EXPECT_NEAR(static_cast<double>(beyond_two) / n, 0.0455003, error * std::sqrt(0.0455 * 0.9545));
}

TEST(Normal, KeepsItsBits) {
  // Weights of a seed must not change with a compiler, a processor or a version. Within 2e-16 of the exact values,
  // which were computed in 50 digits from the same words.
  struct Answer {
    std::uint64_t key, index, bits;
  };
  const Answer answers[] = {{0x0, 0, 0x3fefb7665e244c5f},
                            {0x0, 1, 0xbfed96d5febb766b},
                            {0xb, 2, 0xbfde583c52961993},
                            {0xb, 12345678901, 0x3ff6984ad5e34409},
                            {0xdeadbeefcafef00d, 1099511627777, 0xbfc0959839e68120},
                            {0xffffffffffffffff, 7, 0xbfef6a86b168d027}};
  for (const Answer& a : answers)
    EXPECT_EQ(std::bit_cast<std::uint64_t>(normal_at(a.key, a.index)), a.bits) << a.key << ", " << a.index;
}

TEST(Normal, IsBoxAndMullersOfTheBlock) {
  double worst = 0;
  for (std::uint64_t i = 0; i < 100000; ++i) {
    const Philox4 block = philox(5, i / 2);
    const long double u = (block.v[0] + 0.5L) * 0x1p-32L;
    const long double angle = 2 * std::numbers::pi_v<long double> * (block.v[1] + 0.5L) * 0x1p-32L;
    const long double radius = std::sqrt(-2 * std::log(u));
    const long double exact = radius * (i % 2 == 0 ? std::cos(angle) : std::sin(angle));
    worst = std::max(worst, static_cast<double>(std::abs(normal_at(5, i) - exact) / radius));
  }
  EXPECT_LT(worst, 4e-16);
}

TEST(Normal, LogarithmAtItsEdges) {
  const std::uint64_t end = 1ull << 33;
  for (const std::uint64_t n : {std::uint64_t{1}, std::uint64_t{3}, end / 2 - 1, end / 2 + 1, end - 1,
                                std::uint64_t{6074001000}, std::uint64_t{6074001001}}) {  // sqrt(1/2) lies between
    const long double exact = std::log(static_cast<long double>(n) / static_cast<long double>(end));
    EXPECT_NEAR(rounded::log_fraction(n) / static_cast<double>(exact), 1.0, 4e-16) << n;
  }
}

TEST(Normal, SineAtItsEdges) {
  for (const std::uint32_t axis : {0u, 1u << 30, 1u << 31, 3u << 30})
    for (const std::uint32_t from_axis : {0u, 1u, ~0u, 0x1fffffffu, 0x20000000u, 0xdfffffffu, 0xe0000000u})
      for (const std::uint32_t quarters : {0u, 1u}) {
        const std::uint32_t turn = axis + from_axis;
        const long double angle = 2 * std::numbers::pi_v<long double> * (turn + 0.5L) * 0x1p-32L;
        const auto exact = static_cast<double>(quarters == 0 ? std::sin(angle) : std::cos(angle));
        EXPECT_NEAR(rounded::sin_turn(turn, quarters), exact, 1.5e-16) << turn;
      }
  EXPECT_EQ(rounded::sin_turn(0, 0), std::numbers::pi * 0x1p-32);
  EXPECT_EQ(rounded::sin_turn(~0u, 0), -std::numbers::pi * 0x1p-32);
}

TEST(Normal, DistributionAndFarTails) {
  const std::size_t n = 1 << 22;
  std::vector<double> draws(n);
  for (std::size_t i = 0; i < n; ++i) draws[i] = normal_at(13, i);
  std::sort(draws.begin(), draws.end());
  // Kolmogorov and Smirnov: the largest distance from the distribution function, below what one sample in a thousand
  // exceeds.
  const auto below = [](double x) { return 0.5 * std::erfc(-x / std::numbers::sqrt2); };
  double distance = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const double expected = below(draws[i]);
    distance = std::max({distance, std::abs(expected - static_cast<double>(i) / n),
                         std::abs(expected - static_cast<double>(i + 1) / n)});
  }
  EXPECT_LT(distance * std::sqrt(static_cast<double>(n)), 1.95);
  for (const double edge : {3.0, 4.0, 4.5}) {
    const double expected = static_cast<double>(n) * below(-edge);
    const auto low = std::lower_bound(draws.begin(), draws.end(), -edge) - draws.begin();
    const auto high = draws.end() - std::upper_bound(draws.begin(), draws.end(), edge);
    EXPECT_NEAR(static_cast<double>(low), expected, 4 * std::sqrt(expected)) << edge;
    EXPECT_NEAR(static_cast<double>(high), expected, 4 * std::sqrt(expected)) << edge;
  }
  EXPECT_GT(draws.back(), 4.8);
  EXPECT_LT(draws.front(), -4.8);
}

TEST(MixKey, SeparatesValuesNamesAndOrder) {
  std::set<std::uint64_t> keys;
  for (std::uint64_t seed = 0; seed < 32; ++seed)
    for (std::uint64_t step = 0; step < 32; ++step) keys.insert(mix_key(mix_key(seed, step), 0));
  EXPECT_EQ(keys.size(), 1024u);
  EXPECT_NE(mix_key(1, "dropout"), mix_key(1, "init"));
  EXPECT_NE(mix_key(1, "dropout"), mix_key(2, "dropout"));
  EXPECT_EQ(mix_key(1, "dropout"), mix_key(1, std::string("drop") + "out"));
}

TEST(MixKey, IsSplitmix64) {
  // splitmix64 seeded with 1234567 yields 6457827717110365317, then 3203168211198807973 (the published test values).
  EXPECT_EQ(mix_key(1234567, std::uint64_t{0}), 6457827717110365317ull);
  EXPECT_EQ(mix_key(1234567, std::uint64_t{1}), 3203168211198807973ull);
}

}  // namespace
}  // namespace trainer
