// Counter random numbers: a pure function of (key, counter), so that a draw depends on what it is for and not on the
// order of drawing, the number of ranks, or the device. Philox4x32-10: Salmon et al., "Parallel random numbers: as
// easy as 1, 2, 3", SC 2011. Everything here is C++17 and may be used in device code.
#pragma once
#include <cmath>
#include <cstdint>
#include <string_view>

#if defined(__CUDACC__)
#define TRAINER_HOST_DEVICE __host__ __device__
#else
#define TRAINER_HOST_DEVICE
#endif

namespace trainer {

struct Philox4 {
  std::uint32_t v[4];
};

/// Ten rounds of Philox4x32 on the 128-bit counter (counter_lo, counter_hi) under the 64-bit key.
TRAINER_HOST_DEVICE inline Philox4 philox(std::uint64_t key, std::uint64_t counter_lo, std::uint64_t counter_hi = 0) {
  std::uint32_t c0 = static_cast<std::uint32_t>(counter_lo), c1 = static_cast<std::uint32_t>(counter_lo >> 32);
  std::uint32_t c2 = static_cast<std::uint32_t>(counter_hi), c3 = static_cast<std::uint32_t>(counter_hi >> 32);
  std::uint32_t k0 = static_cast<std::uint32_t>(key), k1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = static_cast<std::uint64_t>(0xD2511F53u) * c0;
    const std::uint64_t p1 = static_cast<std::uint64_t>(0xCD9E8D57u) * c2;
    const std::uint32_t n0 = static_cast<std::uint32_t>(p1 >> 32) ^ c1 ^ k0;
    const std::uint32_t n2 = static_cast<std::uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c1 = static_cast<std::uint32_t>(p1);
    c3 = static_cast<std::uint32_t>(p0);
    c0 = n0;
    c2 = n2;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

/// Mixes two 64-bit values into a key (splitmix64's finaliser); chain it to name a draw: seed, then purpose, then step.
TRAINER_HOST_DEVICE inline std::uint64_t mix_key(std::uint64_t key, std::uint64_t value) {
  std::uint64_t x = key + 0x9E3779B97F4A7C15ull * (value + 1);
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

/// Mixes a name into a key (FNV-1a of the bytes).
inline std::uint64_t mix_key(std::uint64_t key, std::string_view name) {
  std::uint64_t hash = 0xCBF29CE484222325ull;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3ull;
  return mix_key(key, hash);
}

/// Uniform in [0, 1) with 24 bits, from one word of a Philox block.
TRAINER_HOST_DEVICE inline float uniform_from_bits(std::uint32_t bits) {
  return static_cast<float>(bits >> 8) * 0x1p-24f;
}

/// Uniform in [0, 1), the value of element `index` of the stream `key`: word index % 4 of block index / 4.
TRAINER_HOST_DEVICE inline float uniform_at(std::uint64_t key, std::uint64_t index) {
  return uniform_from_bits(philox(key, index >> 2).v[index & 3]);
}

/// Standard normal (Box-Muller in double) as element `index` of the stream `key`. Host only: libm's bits differ from
/// the device's, and the weights of a run must not depend on where they were drawn.
inline double normal_at(std::uint64_t key, std::uint64_t index) {
  const Philox4 block = philox(key, index >> 1);
  const double u = (static_cast<double>(block.v[0]) + 0.5) * 0x1p-32;
  const double angle = 6.283185307179586476925 * (static_cast<double>(block.v[1]) + 0.5) * 0x1p-32;
  const double radius = std::sqrt(-2.0 * std::log(u));
  return (index & 1) != 0 ? radius * std::sin(angle) : radius * std::cos(angle);
}

}  // namespace trainer
