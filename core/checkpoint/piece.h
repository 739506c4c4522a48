// What a checkpoint is made of: named global tensors, and boxes of them. Nothing here knows models, layers or meshes.
#pragma once
#include <cstdint>
#include <functional>
#include <string>

#include "core/runtime/dtype.h"

namespace trainer {

/// The whole tensor, as the model sees it: without padding, in no layout.
struct TensorShape {
  int dims = 2;  // 1: a vector, stored as [rows, 1]
  std::int64_t rows = 0;
  std::int64_t cols = 1;
  std::int64_t numel() const { return rows * cols; }
  bool operator==(const TensorShape&) const = default;
};

/// Rows [row0, row0 + rows) and columns [col0, col0 + cols) of a tensor.
struct Box {
  std::int64_t row0 = 0;
  std::int64_t rows = 0;
  std::int64_t col0 = 0;
  std::int64_t cols = 1;
  std::int64_t numel() const { return rows * cols; }
  bool operator==(const Box&) const = default;
};

/// "[4096, 1024]", or "[4096]" for a vector.
std::string to_text(const TensorShape& shape);
/// "rows 0..63, columns 128..255".
std::string to_text(const Box& box);

/// What two boxes have in common; numel() is 0 when that is nothing.
Box intersect(const Box& a, const Box& b);

/// A box of a tensor that lives on this rank. Elements are counted in row-major order of the box, from 0. The functions
/// hide how the live state is kept (split masters, a shard, device memory).
struct Piece {
  std::string tensor;  // "/" makes groups in the HDF5 files: "exp_avg/model.norm.weight"
  TensorShape global;
  Dtype dtype = Dtype::f32;
  Box box;
  /// Copies elements [first, first + count) of the box from the live state to `host`. Needed to save.
  std::function<void(std::int64_t first, std::int64_t count, void* host)> read;
  /// The inverse. Needed to load.
  std::function<void(std::int64_t first, std::int64_t count, const void* host)> write;
};

}  // namespace trainer
