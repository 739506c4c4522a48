// Element types and the two 16-bit floats on the host. Device code uses CUDA's own types, which have the same bits.
#pragma once
#include <cstdint>
#include <cstring>
#include <string_view>

namespace trainer {

enum class Dtype : std::uint8_t { f64, f32, bf16, f16, i32, i64, u16, u8 };

/// Bytes of one element.
std::int64_t dtype_size(Dtype dtype);
/// "float64", "float32", "bfloat16", "float16", "int32", "int64", "uint16", "uint8".
std::string_view dtype_name(Dtype dtype);
/// The inverse of dtype_name. Throws Error(config) for an unknown name.
Dtype dtype_from_name(std::string_view name);
inline bool is_floating(Dtype d) {
  return d == Dtype::f64 || d == Dtype::f32 || d == Dtype::bf16 || d == Dtype::f16;
}

/// fp32 -> bf16, round to nearest even; NaN stays NaN.
std::uint16_t bf16_bits_from_float(float value);
/// fp32 -> fp16, round to nearest even; beyond 65504 becomes infinity, as the hardware does.
std::uint16_t f16_bits_from_float(float value);
float float_from_f16_bits(std::uint16_t bits);
inline float float_from_bf16_bits(std::uint16_t bits) {
  const std::uint32_t wide = static_cast<std::uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, sizeof value);
  return value;
}

/// Storage types of the CPU bodies: they only convert. Arithmetic happens in float.
struct Bfloat16 {
  std::uint16_t bits = 0;
  Bfloat16() = default;
  explicit Bfloat16(float value) : bits(bf16_bits_from_float(value)) {}
  explicit operator float() const { return float_from_bf16_bits(bits); }
};
struct Float16 {
  std::uint16_t bits = 0;
  Float16() = default;
  explicit Float16(float value) : bits(f16_bits_from_float(value)) {}
  explicit operator float() const { return float_from_f16_bits(bits); }
};

template <class T>
struct DtypeOf;
template <>
struct DtypeOf<double> {
  static constexpr Dtype value = Dtype::f64;
};
template <>
struct DtypeOf<float> {
  static constexpr Dtype value = Dtype::f32;
};
template <>
struct DtypeOf<Bfloat16> {
  static constexpr Dtype value = Dtype::bf16;
};
template <>
struct DtypeOf<Float16> {
  static constexpr Dtype value = Dtype::f16;
};
template <>
struct DtypeOf<std::int32_t> {
  static constexpr Dtype value = Dtype::i32;
};
template <>
struct DtypeOf<std::int64_t> {
  static constexpr Dtype value = Dtype::i64;
};
template <>
struct DtypeOf<std::uint16_t> {
  static constexpr Dtype value = Dtype::u16;
};
template <>
struct DtypeOf<std::uint8_t> {
  static constexpr Dtype value = Dtype::u8;
};

}  // namespace trainer
