#include "core/runtime/rng.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <set>

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
