// Which sample is where: a pure function of (seed, index of the sample in the run), so that the order knows no number
// of ranks, and a resume seeks in O(1).
#pragma once
#include <cstdint>
#include <string>

namespace trainer {

/// Window w covers tokens [w * seq_length, (w + 1) * seq_length] of the concatenated shards, both ends included: its
/// inputs are the first seq_length of them, its targets the last. Neighbouring windows share one token, so that every
/// token but the first is a target once. Tokens behind the last whole window are not used.
/// Throws Error(data) when not even one window fits; `key` names the data in the configuration.
std::int64_t num_windows(std::int64_t num_tokens, std::int64_t seq_length, const std::string& key = "data.train");

/// What window() says when there is none.
constexpr std::int64_t kNoWindow = -1;

class Sampler {
 public:
  /// Training: every epoch visits each window once, in an order of its own that follows from (seed, epoch).
  Sampler(std::uint64_t seed, std::int64_t windows);
  /// Validation: the windows in their order, once; kNoWindow behind the last.
  static Sampler in_order(std::int64_t windows);

  std::int64_t windows() const { return windows_; }
  /// The window of sample `sample_index` of the run: sample_index = step x global_batch_size + slot in the global
  /// batch. The epoch is sample_index / windows.
  std::int64_t window(std::int64_t sample_index) const;

 private:
  std::uint64_t key_ = 0;
  std::int64_t windows_;
  bool shuffled_ = true;
};

}  // namespace trainer
