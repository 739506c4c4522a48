// Counter random numbers: a pure function of (key, counter), so that a draw depends on what it is for and not on the
// order of drawing, the number of ranks, or the device. Philox4x32-10: Salmon et al., "Parallel random numbers: as
// easy as 1, 2, 3", SC 2011. Everything here is C++17 and may be used in device code.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
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

// ---- standard normal ----------------------------------------------------------------------------------------------
// Made of IEEE operations alone, each rounded once: no libm, whose bits differ between machines, and no fused
// multiply-add. So weights are the same wherever they are drawn. Device code says so by intrinsics; host code whose
// bits matter is compiled with -ffp-contract=off.
namespace rounded {

TRAINER_HOST_DEVICE inline double product(double a, double b) {
#if defined(__CUDA_ARCH__)
  return __dmul_rn(a, b);
#else
  return a * b;
#endif
}

TRAINER_HOST_DEVICE inline double sum(double a, double b) {
#if defined(__CUDA_ARCH__)
  return __dadd_rn(a, b);
#else
  return a + b;
#endif
}

/// c[0] + c[1] x + c[2] x^2 ...
template <int N>
TRAINER_HOST_DEVICE inline double polynomial(double x, const double (&c)[N]) {
  double value = c[N - 1];
  for (int i = N - 2; i >= 0; --i) value = sum(product(value, x), c[i]);
  return value;
}

/// ln(n / 2^33) for n in [1, 2^33). With m 2^e = n, sqrt(1/2) < m <= sqrt(2) and s = (m - 1) / (m + 1), ln m = 2
/// artanh s = 2 s (1 + s^2 / 3 + s^4 / 5 ...), |s| < 0.172.
TRAINER_HOST_DEVICE inline double log_fraction(std::uint64_t n) {
  constexpr double kLog2 = 0.693147180559945309417;
  constexpr double kSeries[] = {1.0,      1.0 / 3,  1.0 / 5,  1.0 / 7,  1.0 / 9, 1.0 / 11,
                                1.0 / 13, 1.0 / 15, 1.0 / 17, 1.0 / 19, 1.0 / 21};
  const auto exact = static_cast<double>(n);
  std::uint64_t bits;
  memcpy(&bits, &exact, sizeof bits);
  int exponent = static_cast<int>(bits >> 52) - 1023;
  bits = (bits & 0xFFFFFFFFFFFFFull) | 0x3FF0000000000000ull;
  double m;
  memcpy(&m, &bits, sizeof m);
  if (m > 1.41421356237309504880) {
    m *= 0.5;
    ++exponent;
  }
  const double s = (m - 1.0) / (m + 1.0);  // both sums are exact: m has 33 bits
  return sum(product(static_cast<double>(exponent - 33), kLog2),
             product(2.0, product(s, polynomial(product(s, s), kSeries))));
}

/// sin(2 pi (turn + 1/2) / 2^32 + quarters pi / 2): Taylor series of sine or cosine on [-pi / 4, pi / 4].
TRAINER_HOST_DEVICE inline double sin_turn(std::uint32_t turn, std::uint32_t quarters) {
  constexpr double kRadians = 6.283185307179586476925 * 0x1p-32;
  constexpr double kSine[] = {1.0,
                              -1.0 / 6,
                              1.0 / 120,
                              -1.0 / 5040,
                              1.0 / 362880,
                              -1.0 / 39916800,
                              1.0 / 6227020800,
                              -1.0 / 1307674368000,
                              1.0 / 355687428096000};
  constexpr double kCosine[] = {1.0,
                                -1.0 / 2,
                                1.0 / 24,
                                -1.0 / 720,
                                1.0 / 40320,
                                -1.0 / 3628800,
                                1.0 / 479001600,
                                -1.0 / 87178291200,
                                1.0 / 20922789888000};
  const std::uint32_t nearest = (turn + 0x20000000u) >> 30;  // of the four axes; modulo 4
  const auto rest = static_cast<std::int32_t>(turn - (nearest << 30));
  const double x = product(static_cast<double>(rest) + 0.5, kRadians);
  const double squared = product(x, x);
  quarters += nearest;
  const double value = (quarters & 1) != 0 ? polynomial(squared, kCosine) : product(x, polynomial(squared, kSine));
  return (quarters & 2) != 0 ? -value : value;
}

}  // namespace rounded

/// Standard normal as element `index` of the stream `key`: Box and Muller 1958. Two words of block index / 2 make a
/// radius and an angle, the even index takes the cosine and the odd one the sine. Smaller than 6.77 in size. The same
/// bits on every host and device.
TRAINER_HOST_DEVICE inline double normal_at(std::uint64_t key, std::uint64_t index) {
  const Philox4 block = philox(key, index >> 1);
  const std::uint64_t odd = 2 * static_cast<std::uint64_t>(block.v[0]) + 1;
  const double radius = sqrt(-2.0 * rounded::log_fraction(odd));
  return rounded::product(radius, rounded::sin_turn(block.v[1], (index & 1) != 0 ? 0 : 1));
}

}  // namespace trainer
