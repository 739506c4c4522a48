// Bit patterns of the optimizer's state, the same on the host and on the device (C++17, integers only).
#pragma once
#include <cstdint>

#include "core/runtime/rng.h"
#include "kernels/ops.h"

namespace trainer {

// ---- split masters ------------------------------------------------------------------------------------------------
// A float32 master with bits b is kept as weight = (b + 0x8000) >> 16, a bf16 number, and low = b & 0xffff: 4 bytes in
// all. Because float32 is sign and magnitude, the weight is the master rounded to nearest, half away from zero; low >>
// 15 tells whether it was rounded up, so the master comes back exactly. The map is one-to-one on all 2^32 patterns
// (arithmetic modulo 2^32); round to nearest even is not, at ties. An infinity stays one; a finite master beyond the
// largest bf16 has an infinite weight. Only NaN needs care: one with all upper mantissa bits set would get a zero as
// its weight, one with none of them an infinity, so a NaN is first made the quiet one of its sign.

/// The bits to be split: those of the master, with NaN made canonical.
TRAINER_HOST_DEVICE inline std::uint32_t canonical_master_bits(std::uint32_t bits) {
  return (bits & 0x7fffffffu) > 0x7f800000u ? (bits & 0x80000000u) | 0x7fc00000u : bits;
}

/// The bf16 weight of a master with canonical bits. Every bf16 weight is made by this function, split or not.
TRAINER_HOST_DEVICE inline std::uint16_t bf16_weight_of_master(std::uint32_t bits) {
  return static_cast<std::uint16_t>((bits + 0x8000u) >> 16);
}

TRAINER_HOST_DEVICE inline std::uint16_t low_bits_of_master(std::uint32_t bits) {
  return static_cast<std::uint16_t>(bits & 0xffffu);
}

TRAINER_HOST_DEVICE inline std::uint32_t join_master(std::uint16_t weight, std::uint16_t low) {
  const std::uint32_t rounded_up = low >> 15;
  return ((static_cast<std::uint32_t>(weight) - rounded_up) << 16) | low;
}

// ---- stochastic rounding ------------------------------------------------------------------------------------------
// A bf16 v with rounding to nearest stalls: (1 - beta2) (g^2 - v) is below half a unit in its last place (1/256) for
// beta2 > 0.998 or so. Rounding up with the probability of the fraction is right on average.

/// The stream of one update of one parameter.
TRAINER_HOST_DEVICE inline std::uint64_t rounding_stream(std::uint64_t rounding_key, std::int64_t updates) {
  return mix_key(rounding_key, static_cast<std::uint64_t>(updates));
}

/// Global index of element i of a run.
TRAINER_HOST_DEVICE inline std::int64_t global_index(const ops::UpdateRun& run, std::int64_t i) {
  const std::int64_t index = run.first_index + i;
  return run.row_gap == 0 ? index : index + (run.first_col + i) / run.cols * run.row_gap;
}

/// 32 random bits for the element with this global index: the lower half rounds m, the upper half v.
TRAINER_HOST_DEVICE inline std::uint32_t rounding_noise(std::uint64_t stream, std::int64_t index) {
  const std::uint64_t i = static_cast<std::uint64_t>(index);
  return philox(stream, i >> 2).v[i & 3];
}

/// float32 bits -> bf16 bits: away from zero with probability (dropped bits) / 2^16, towards zero otherwise. `noise` is
/// uniform in [0, 2^16). Values that bf16 holds are unchanged; NaN stays NaN.
TRAINER_HOST_DEVICE inline std::uint16_t bf16_stochastic(std::uint32_t bits, std::uint32_t noise) {
  return static_cast<std::uint16_t>((canonical_master_bits(bits) + noise) >> 16);
}

}  // namespace trainer
