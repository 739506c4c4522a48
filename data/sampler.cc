#include "data/sampler.h"

#include <bit>

#include "core/runtime/check.h"
#include "core/runtime/rng.h"

namespace trainer {
namespace {

/// A keyed permutation of 0 .. size - 1, evaluated at `index`: a Feistel network over the next even number of bits
/// (Luby and Rackoff, "How to construct pseudorandom permutations", 1988), applied again while the value lies outside
/// (cycle walking: Black and Rogaway, "Ciphers with arbitrary finite domains", 2002). The domain is below 4 x size, so
/// that fewer than four turns are needed on average. Nothing is stored. With halves of two bits or more such a network
/// is an even permutation: not all orders of a few windows are equally likely, but all pairs of windows at all places
/// are.
std::uint64_t permuted(std::uint64_t index, std::uint64_t size, std::uint64_t key) {
  const int half_bits = (static_cast<int>(std::bit_width(size - 1)) + 1) / 2;
  const std::uint64_t half_mask = (std::uint64_t{1} << half_bits) - 1;
  constexpr int rounds = 12;  // four suffice for large halves; halves of a few bits mix less in a round
  do {
    std::uint64_t left = index >> half_bits;
    std::uint64_t right = index & half_mask;
    for (int round = 0; round < rounds; ++round) {
      const std::uint64_t mixed = philox(key, right, static_cast<std::uint64_t>(round)).v[0] & half_mask;
      const std::uint64_t next = left ^ mixed;
      left = right;
      right = next;
    }
    index = left << half_bits | right;
  } while (index >= size);
  return index;
}

}  // namespace

std::int64_t num_windows(std::int64_t num_tokens, std::int64_t seq_length, const std::string& key) {
  TRAINER_CHECK(num_tokens >= 0 && seq_length >= 1, "{} tokens, seq_length {}", num_tokens, seq_length);
  const std::int64_t windows = (num_tokens - 1) / seq_length;
  if (windows < 1)
    fail(ExitCode::data,
         "{} holds {} tokens, but one sample takes {} (train.seq_length {} + 1): add data or shorten the samples", key,
         num_tokens, seq_length + 1, seq_length);
  return windows;
}

Sampler::Sampler(std::uint64_t seed, std::int64_t windows) : key_(mix_key(seed, "sample order")), windows_(windows) {
  TRAINER_CHECK(windows >= 1, "{} windows", windows);
}

Sampler Sampler::in_order(std::int64_t windows) {
  Sampler sampler(0, windows);
  sampler.shuffled_ = false;
  return sampler;
}

std::int64_t Sampler::window(std::int64_t sample_index) const {
  TRAINER_CHECK(sample_index >= 0, "sample {}", sample_index);
  if (!shuffled_) return sample_index < windows_ ? sample_index : kNoWindow;
  const auto epoch = static_cast<std::uint64_t>(sample_index / windows_);
  const auto position = static_cast<std::uint64_t>(sample_index % windows_);
  return static_cast<std::int64_t>(permuted(position, static_cast<std::uint64_t>(windows_), mix_key(key_, epoch)));
}

}  // namespace trainer
