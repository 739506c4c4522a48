// What the checkpoint tests share: a model that is nothing but tensors of known bits.
#pragma once
#include <gtest/gtest.h>

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "core/checkpoint/load.h"
#include "core/checkpoint/save.h"
#include "parallel/self_communicator.h"

namespace trainer::checkpoint_test {

/// Small random numbers with a fixed seed.
class Random {
 public:
  explicit Random(std::uint64_t seed) : key_(seed) {}
  std::uint64_t bits();
  /// In [first, last].
  std::int64_t between(std::int64_t first, std::int64_t last);

 private:
  std::uint64_t key_;
  std::uint64_t counter_ = 0;
};

struct LiveTensor {
  std::string name;
  TensorShape shape;
  Dtype dtype;
  std::vector<std::byte> data;  // the whole tensor, row-major
};

struct Model {
  std::vector<LiveTensor> tensors;
  std::int64_t writes = 0;  // calls of write() so far
  std::int64_t reads = 0;
  std::function<void()> on_read;  // called before each read

  /// Every element type, vectors and matrices, names with groups.
  static Model of_all_dtypes();
  static Model small();
  /// Bits that depend on the seed, the tensor and the element, NaNs among them.
  void fill(std::uint64_t seed);
  void clear();
  bool same_bits(const Model& other) const;
  /// A piece of tensor number `index`. The model must outlive it.
  Piece piece(std::size_t index, const Box& box);
  /// One piece a tensor.
  std::vector<Piece> whole();
  /// Each tensor cut into boxes at random.
  std::vector<Piece> tiled(Random& random);
};

/// A box cut into boxes at random, `cuts` times at most.
std::vector<Box> random_tiling(const Box& whole, Random& random, int cuts);

SaveRequest request_for(const std::string& save_dir, std::int64_t step, std::vector<Piece> pieces);

/// Saves the model filled with `step` as its seed.
SaveResult save_step(const std::string& save_dir, std::int64_t step, std::int64_t keep_last = 0);
/// What find_checkpoint with load: auto gives, its warnings appended to `warnings`.
std::optional<CheckpointInfo> find_auto(const std::string& save_dir, std::vector<std::string>* warnings = nullptr);
/// The checkpoint holds what save_step saved for its step.
void expect_content(const CheckpointInfo& info);

/// Names in a folder, sorted.
std::vector<std::string> names_in(const std::string& folder);
void flip_bit(const std::string& path, std::int64_t byte, int bit);

}  // namespace trainer::checkpoint_test
