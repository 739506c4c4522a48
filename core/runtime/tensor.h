// A tensor is a view: pointer, element type, two sizes and one row stride. It owns nothing and is passed by value.
#pragma once
#include <cstdint>

#include "core/runtime/check.h"
#include "core/runtime/dtype.h"

namespace trainer {

/// [rows, cols], elements of a row contiguous, `stride` elements from one row to the next. Activations are token-major:
/// a row is a token. A vector is [1, n]; a default-constructed Tensor is "absent" (optional arguments of ops).
/// In a memory plan (core/runtime/arena.h) `data` is null while the shape is already right.
struct Tensor {
  void* data = nullptr;
  Dtype dtype = Dtype::f32;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t stride = 0;

  explicit operator bool() const { return rows > 0; }
  std::int64_t numel() const { return rows * cols; }
  std::int64_t bytes() const { return numel() * dtype_size(dtype); }
  bool contiguous() const { return stride == cols || rows <= 1; }

  /// The elements as T. Checks the element type.
  template <class T>
  T* as() const {
    TRAINER_CHECK(dtype == DtypeOf<T>::value, "tensor holds {}, asked for {}", dtype_name(dtype),
                  dtype_name(DtypeOf<T>::value));
    return static_cast<T*>(data);
  }

  /// Rows [first, first + count).
  Tensor row_range(std::int64_t first, std::int64_t count) const {
    TRAINER_CHECK(first >= 0 && count >= 0 && first + count <= rows, "rows {}+{} of {}", first, count, rows);
    return {offset(first * stride), dtype, count, cols, stride};
  }
  /// Columns [first, first + count) of every row: q, k and v are such views of one buffer.
  Tensor col_range(std::int64_t first, std::int64_t count) const {
    TRAINER_CHECK(first >= 0 && count >= 0 && first + count <= cols, "columns {}+{} of {}", first, count, cols);
    return {offset(first), dtype, rows, count, stride};
  }
  /// The same elements with another shape. The tensor must be contiguous.
  Tensor reshape(std::int64_t new_rows, std::int64_t new_cols) const {
    TRAINER_CHECK(contiguous() && new_rows * new_cols == numel(), "reshape [{}, {}] to [{}, {}]", rows, cols, new_rows,
                  new_cols);
    return {data, dtype, new_rows, new_cols, new_cols};
  }
  /// All elements as one row [1, n].
  Tensor flat() const { return reshape(1, numel()); }
  /// Elements [first, first + count) of a flat tensor.
  Tensor flat_range(std::int64_t first, std::int64_t count) const { return flat().col_range(first, count).flat(); }

 private:
  void* offset(std::int64_t elements) const {
    return data == nullptr ? nullptr : static_cast<char*>(data) + elements * dtype_size(dtype);
  }
};

/// A contiguous tensor over memory that the caller owns.
inline Tensor tensor_over(void* data, Dtype dtype, std::int64_t rows, std::int64_t cols) {
  return {data, dtype, rows, cols, cols};
}

}  // namespace trainer
