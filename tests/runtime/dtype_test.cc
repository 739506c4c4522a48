#include "core/runtime/dtype.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>

#include "core/runtime/check.h"

namespace trainer {
namespace {

/// The value of a 16-bit float with the given number of exponent bits, from its definition: sign, 2^exponent, 1 +
/// fraction (IEEE 754-2019, 3.4).
double decode(std::uint16_t bits, int exponent_bits) {
  const int fraction_bits = 15 - exponent_bits;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = (bits >> fraction_bits) & ((1 << exponent_bits) - 1);
  const double fraction = std::ldexp(bits & ((1 << fraction_bits) - 1), -fraction_bits);
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  if (exponent == (1 << exponent_bits) - 1)
    return fraction != 0 ? std::nan("") : sign * std::numeric_limits<double>::infinity();
  return exponent == 0 ? sign * std::ldexp(fraction, 1 - bias) : sign * std::ldexp(1 + fraction, exponent - bias);
}

struct Format {
  const char* name;
  int exponent_bits;
  std::uint16_t (*to_bits)(float);
  float (*to_float)(std::uint16_t);
  std::uint16_t infinity;
};
const Format kFormats[] = {{"bf16", 8, bf16_bits_from_float, float_from_bf16_bits, 0x7f80},
                           {"f16", 5, f16_bits_from_float, float_from_f16_bits, 0x7c00}};

TEST(SixteenBitFloats, AllPatternsDecodeByDefinitionAndRoundTrip) {
  for (const Format& f : kFormats)
    for (std::uint32_t pattern = 0; pattern < 65536; ++pattern) {
      const auto bits = static_cast<std::uint16_t>(pattern);
      const float value = f.to_float(bits);
      const double expected = decode(bits, f.exponent_bits);
      if (std::isnan(expected)) {
        ASSERT_TRUE(std::isnan(value)) << f.name << " " << pattern;
        ASSERT_TRUE(std::isnan(f.to_float(f.to_bits(value)))) << f.name << " " << pattern;
        continue;
      }
      ASSERT_EQ(value, expected) << f.name << " " << pattern;
      ASSERT_EQ(std::signbit(value), (bits & 0x8000) != 0) << f.name << " " << pattern;
      ASSERT_EQ(f.to_bits(value), bits) << f.name << " " << pattern;
    }
}

TEST(SixteenBitFloats, EveryTieGoesToEvenAndItsNeighboursToTheNearest) {
  for (const Format& f : kFormats)
    for (std::uint32_t pattern = 0; pattern + 1u < f.infinity; ++pattern) {
      const auto low = static_cast<std::uint16_t>(pattern), high = static_cast<std::uint16_t>(pattern + 1);
      const double middle = (decode(low, f.exponent_bits) + decode(high, f.exponent_bits)) / 2;
      const auto tie = static_cast<float>(middle);
      ASSERT_EQ(static_cast<double>(tie), middle);
      const std::uint16_t even = (low & 1) == 0 ? low : high;
      ASSERT_EQ(f.to_bits(tie), even) << f.name << " " << pattern;
      ASSERT_EQ(f.to_bits(-tie), even | 0x8000) << f.name << " " << pattern;
      ASSERT_EQ(f.to_bits(std::nextafter(tie, 0.0f)), low) << f.name << " " << pattern;
      ASSERT_EQ(f.to_bits(std::nextafter(tie, HUGE_VALF)), high) << f.name << " " << pattern;
    }
}

TEST(SixteenBitFloats, OverflowInfinityAndNan) {
  for (const Format& f : kFormats) {
    const double largest = decode(static_cast<std::uint16_t>(f.infinity - 1), f.exponent_bits);
    const double next = std::ldexp(1.0, f.exponent_bits == 8 ? 128 : 16);
    const auto limit = static_cast<float>((largest + next) / 2);  // rounds to even, which is infinity
    EXPECT_EQ(f.to_bits(limit), f.infinity) << f.name;
    EXPECT_EQ(f.to_bits(std::nextafter(limit, 0.0f)), f.infinity - 1) << f.name;
    EXPECT_EQ(f.to_bits(std::numeric_limits<float>::max()), f.infinity) << f.name;
    EXPECT_EQ(f.to_bits(HUGE_VALF), f.infinity) << f.name;
    EXPECT_EQ(f.to_bits(-HUGE_VALF), f.infinity | 0x8000) << f.name;
    EXPECT_TRUE(std::isnan(f.to_float(f.to_bits(std::numeric_limits<float>::quiet_NaN())))) << f.name;
    EXPECT_TRUE(std::isnan(f.to_float(f.to_bits(std::numeric_limits<float>::signaling_NaN())))) << f.name;
    EXPECT_EQ(f.to_bits(std::numeric_limits<float>::denorm_min()), 0) << f.name;
  }
  EXPECT_EQ(f16_bits_from_float(65504.0f), 0x7bff);
  EXPECT_EQ(f16_bits_from_float(65519.99f), 0x7bff);
  EXPECT_EQ(f16_bits_from_float(65520.0f), 0x7c00);
}

TEST(SixteenBitFloats, ANanWhoseBitsSitBelowTheCutStaysANan) {
  float value;
  const std::uint32_t bits = 0x7f800001u;
  std::memcpy(&value, &bits, sizeof value);
  EXPECT_TRUE(std::isnan(float_from_bf16_bits(bf16_bits_from_float(value))));
  EXPECT_TRUE(std::isnan(float_from_f16_bits(f16_bits_from_float(value))));
}

TEST(Dtype, NamesAndSizes) {
  for (const auto& [dtype, name, size] : {std::tuple{Dtype::f64, "float64", 8},
                                          {Dtype::f32, "float32", 4},
                                          {Dtype::bf16, "bfloat16", 2},
                                          {Dtype::f16, "float16", 2},
                                          {Dtype::i32, "int32", 4},
                                          {Dtype::i64, "int64", 8},
                                          {Dtype::u16, "uint16", 2},
                                          {Dtype::u8, "uint8", 1}}) {
    EXPECT_EQ(dtype_name(dtype), name);
    EXPECT_EQ(dtype_from_name(name), dtype);
    EXPECT_EQ(dtype_size(dtype), size);
  }
  EXPECT_TRUE(is_floating(Dtype::bf16));
  EXPECT_FALSE(is_floating(Dtype::u16));
}

TEST(Dtype, AnUnknownNameIsAConfigurationError) {
  try {
    dtype_from_name("float8");
    FAIL() << "accepted float8";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::config);
    EXPECT_NE(std::string(error.what()).find("float8"), std::string::npos);
  }
}

}  // namespace
}  // namespace trainer
