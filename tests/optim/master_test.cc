#include <gtest/gtest.h>

#include <bit>
#include <cfloat>
#include <cmath>

#include "tests/optim/host_shard.h"

namespace trainer::test {
namespace {

/// The nearest bf16 to a finite float32, half away from zero, found by exact comparison in float64. The step beyond the
/// largest bf16 is infinity, at the distance that another exponent would have.
std::uint16_t nearest_bf16(float value) {
  const double magnitude = std::abs(static_cast<double>(value));
  const auto below = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(std::abs(value)) >> 16);
  const auto above = static_cast<std::uint16_t>(below + 1);
  const double low = float_from_bf16_bits(below);
  const double high = above == 0x7f80 ? 0x1p128 : static_cast<double>(float_from_bf16_bits(above));
  const std::uint16_t nearest = magnitude - low < high - magnitude ? below : above;
  return static_cast<std::uint16_t>(nearest | (std::signbit(value) ? 0x8000u : 0u));
}

struct SplitResult {
  std::vector<std::uint16_t> weight;
  std::vector<float> master;
};

SplitResult write_and_read(std::vector<float> values) {
  const auto n = static_cast<std::int64_t>(values.size());
  const HostShard shard(Dtype::bf16, Dtype::f32, n);
  ops::master_write(Context{}, {tensor_over(values.data(), Dtype::f32, 1, n), shard.tensors()});
  SplitResult result{std::vector<std::uint16_t>(values.size()), std::vector<float>(values.size())};
  ops::master_read(Context{}, {shard.tensors(), tensor_over(result.master.data(), Dtype::f32, 1, n)});
  for (std::size_t i = 0; i < values.size(); ++i) result.weight[i] = shard.tensors().weight.as<Bfloat16>()[i].bits;
  return result;
}

/// Exact master for numbers and infinities; NaN both as weight and as master.
void check_patterns(const std::vector<std::uint32_t>& patterns) {
  std::vector<float> values;
  values.reserve(patterns.size());
  for (const std::uint32_t bits : patterns) values.push_back(std::bit_cast<float>(bits));
  const SplitResult result = write_and_read(values);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const float weight = float_from_bf16_bits(result.weight[i]);
    if (std::isnan(values[i])) {
      ASSERT_TRUE(std::isnan(result.master[i]) && std::isnan(weight)) << std::hex << patterns[i];
      continue;
    }
    ASSERT_EQ(std::bit_cast<std::uint32_t>(result.master[i]), patterns[i]) << std::hex << patterns[i];
    if (std::isfinite(values[i]))
      ASSERT_EQ(result.weight[i], nearest_bf16(values[i])) << std::hex << patterns[i];
    else
      ASSERT_EQ(weight, values[i]);
  }
}

TEST(SplitMaster, RandomBitPatternsComeBackExactly) {
  std::vector<std::uint32_t> patterns(std::size_t{1} << 20);
  for (std::size_t i = 0; i < patterns.size(); ++i) patterns[i] = philox(42, i).v[0];
  check_patterns(patterns);
}

// Every upper half with the lower halves around a tie and around a carry: all ties, all exponents, NaN and infinity.
TEST(SplitMaster, TiesAndCarriesComeBackExactly) {
  std::vector<std::uint32_t> patterns;
  for (std::uint32_t upper = 0; upper < 65536; ++upper)
    for (const std::uint32_t lower : {0x0000u, 0x0001u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu})
      patterns.push_back(upper << 16 | lower);
  check_patterns(patterns);
}

TEST(SplitMaster, HalfIsRoundedAwayFromZero) {
  const SplitResult result = write_and_read({1.00390625f, -1.00390625f, FLT_MAX});  // 1 + 2^-8 is a tie
  EXPECT_EQ(float_from_bf16_bits(result.weight[0]), 1.0078125f);
  EXPECT_EQ(float_from_bf16_bits(result.weight[1]), -1.0078125f);
  EXPECT_EQ(float_from_bf16_bits(result.weight[2]), INFINITY) << "the weight overflows,";
  EXPECT_EQ(result.master[2], FLT_MAX) << "the master does not";
}

TEST(Master, WeightsAloneAreRoundedAsWithTheirMasters) {
  constexpr std::int64_t kN = 1 << 16;
  for (const Dtype dtype : {Dtype::f64, Dtype::f32, Dtype::bf16, Dtype::f16}) {
    const HostShard full(dtype, Dtype::f32, kN), alone(dtype, Dtype::f32, kN);
    std::vector<double> values = normals(1, 0, kN);
    values[0] = std::nan("");
    full.write_master(values);
    ops::ShardTensors weight_only;
    weight_only.weight = alone.tensors().weight;
    ops::master_write(Context{}, {tensor_over(values.data(), Dtype::f64, 1, kN), weight_only});
    const auto bytes = static_cast<std::size_t>(full.tensors().weight.bytes());
    EXPECT_EQ(std::memcmp(full.tensors().weight.data, alone.tensors().weight.data, bytes), 0) << dtype_name(dtype);
  }
}

TEST(Master, ReadsWhatWasWritten) {
  constexpr std::int64_t kN = 1000;
  const std::vector<double> values = normals(2, 0, kN);
  std::vector<double> as_float;
  as_float.reserve(values.size());
  for (const double v : values) as_float.push_back(static_cast<float>(v));
  for (const Dtype dtype : {Dtype::f32, Dtype::bf16, Dtype::f16}) {
    const HostShard shard(dtype, Dtype::f32, kN);
    shard.write_master(values);
    EXPECT_EQ(shard.read_master(), as_float) << dtype_name(dtype);
  }
  const HostShard shard(Dtype::f64, Dtype::f64, kN);
  shard.write_master(values);
  EXPECT_EQ(shard.read_master(), values);
}

TEST(Master, RefusesToLoseBits) {
  const HostShard shard(Dtype::f64, Dtype::f64, 4);
  std::vector<float> out(4);
  EXPECT_THROW(ops::master_read(Context{}, {shard.tensors(), tensor_over(out.data(), Dtype::f32, 1, 4)}), Error);
  const HostShard split(Dtype::bf16, Dtype::f32, 4);
  ops::ShardTensors weight_only;
  weight_only.weight = split.tensors().weight;
  EXPECT_THROW(ops::master_read(Context{}, {weight_only, tensor_over(out.data(), Dtype::f32, 1, 4)}), Error);
}

}  // namespace
}  // namespace trainer::test
