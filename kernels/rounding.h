// Rounding that the CPU and the CUDA bodies share (C++17).
#pragma once
#include <cstdint>
#include <cstring>

#include "core/runtime/rng.h"

namespace trainer {

/// double -> float, rounded to odd: an inexact result gets its last bit set. A second rounding, to 16 bits, then gives
/// what one rounding of the double would (Boldo and Melquiond 2008).
TRAINER_HOST_DEVICE inline float float_rounded_to_odd(double value) {
  const auto nearest = static_cast<float>(value);
  const auto back = static_cast<double>(nearest);
  if (back == value || value != value) return nearest;
  std::uint32_t bits;
  memcpy(&bits, &nearest, sizeof bits);
  const bool away = (value < 0) ? back < value : back > value;
  if (away) --bits;  // towards zero; from infinity to the largest finite value
  bits |= 1u;
  float odd;
  memcpy(&odd, &bits, sizeof odd);
  return odd;
}

}  // namespace trainer
