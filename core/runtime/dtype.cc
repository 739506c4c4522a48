#include "core/runtime/dtype.h"

#include <array>
#include <utility>

#include "core/runtime/check.h"

namespace trainer {
namespace {

constexpr std::array<std::pair<Dtype, std::string_view>, 8> kNames = {{{Dtype::f64, "float64"},
                                                                       {Dtype::f32, "float32"},
                                                                       {Dtype::bf16, "bfloat16"},
                                                                       {Dtype::f16, "float16"},
                                                                       {Dtype::i32, "int32"},
                                                                       {Dtype::i64, "int64"},
                                                                       {Dtype::u16, "uint16"},
                                                                       {Dtype::u8, "uint8"}}};

std::uint32_t bits_of(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

float float_of(std::uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

}  // namespace

std::int64_t dtype_size(Dtype dtype) {
  switch (dtype) {
    case Dtype::f64:
    case Dtype::i64:
      return 8;
    case Dtype::f32:
    case Dtype::i32:
      return 4;
    case Dtype::bf16:
    case Dtype::f16:
    case Dtype::u16:
      return 2;
    case Dtype::u8:
      return 1;
  }
  return 0;
}

std::string_view dtype_name(Dtype dtype) {
  for (const auto& [known, name] : kNames)
    if (known == dtype) return name;
  return "unknown";
}

Dtype dtype_from_name(std::string_view name) {
  for (const auto& [dtype, known] : kNames)
    if (known == name) return dtype;
  fail(ExitCode::config, "unknown element type '{}'", name);
}

std::uint16_t bf16_bits_from_float(float value) {
  const std::uint32_t bits = bits_of(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>((bits >> 16) | 0x40u);  // keep NaN a NaN
  const std::uint32_t round_to_even = 0x7fffu + ((bits >> 16) & 1u);
  return static_cast<std::uint16_t>((bits + round_to_even) >> 16);
}

std::uint16_t f16_bits_from_float(float value) {
  const std::uint32_t bits = bits_of(value);
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000u);
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<std::uint16_t>(sign | 0x7e00u);   // NaN
  if (magnitude >= 0x477ff000u) return static_cast<std::uint16_t>(sign | 0x7c00u);  // rounds to 65536 or more
  if (magnitude < 0x38800000u) {  // below 2^-14: subnormal in fp16; the float adder does the rounding to even
    const float shifted = float_of(magnitude) + 0.5f;  // ulp(0.5) is 2^-24, the spacing of fp16 subnormals
    return static_cast<std::uint16_t>(sign | (bits_of(shifted) - 0x3f000000u));
  }
  const std::uint32_t round_to_even = 0xfffu + ((magnitude >> 13) & 1u);
  return static_cast<std::uint16_t>(sign | ((magnitude + round_to_even - 0x38000000u) >> 13));
}

float float_from_f16_bits(std::uint16_t half) {
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000u) << 16;
  const std::uint32_t exponent = (half >> 10) & 0x1fu;
  const std::uint32_t mantissa = half & 0x3ffu;
  if (exponent == 31) return float_of(sign | 0x7f800000u | (mantissa << 13));
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return sign != 0 ? -magnitude : magnitude;
  }
  return float_of(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

}  // namespace trainer
