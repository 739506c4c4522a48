// Matrix products for the CPU bodies: OpenBLAS on float and double, with 16-bit tensors widened tile by tile.
#pragma once
#include <cstdint>
#include <type_traits>
#include <vector>

#include "kernels/cpu/common.h"

namespace trainer::ops::cpu {

/// A row-major matrix in A, or the transpose of one. It owns nothing.
template <class A>
struct Matrix {
  A* data;
  std::int64_t rows, cols, stride;  // as stored
  bool transposed = false;

  Matrix row_range(std::int64_t first, std::int64_t count) const {
    return {data + first * stride, count, cols, stride};
  }
  operator Matrix<const A>() const requires(!std::is_const_v<A>) { return {data, rows, cols, stride, transposed}; }
};
template <class A>
Matrix<A> transpose(Matrix<A> m) {
  m.transposed = !m.transposed;
  return m;
}

/// c = alpha a b + beta c; c is not read when beta is 0. A is float or double.
template <class A>
void gemm(A alpha, std::type_identity_t<Matrix<const A>> a, std::type_identity_t<Matrix<const A>> b,
          std::type_identity_t<A> beta, Matrix<A> c);

/// True for the storage types that are not their own accumulator: bf16 and fp16.
template <class T>
constexpr bool is_narrow = !std::is_same_v<T, Acc<T>>;

/// A tensor's values as A, to read: a view for float64 and float32, a copy for 16-bit types.
template <class T>
class Widened {
 public:
  Widened() = default;
  explicit Widened(const Tensor& tensor) { load(tensor); }

  /// Reuses the memory of an earlier load.
  void load(const Tensor& tensor) {
    if constexpr (is_narrow<T>) {
      copy_.resize(static_cast<std::size_t>(tensor.numel()));
      const Rows<T> from = rows_of<T>(tensor);
      for (std::int64_t row = 0; row < tensor.rows; ++row)
        for (std::int64_t col = 0; col < tensor.cols; ++col)
          copy_[static_cast<std::size_t>(row * tensor.cols + col)] = widen(from[row][col]);
      matrix_ = {copy_.data(), tensor.rows, tensor.cols, tensor.cols};
    } else {
      matrix_ = {tensor.as<T>(), tensor.rows, tensor.cols, tensor.stride};
    }
  }
  Matrix<const Acc<T>> matrix() const { return matrix_; }

 private:
  std::vector<Acc<T>> copy_;
  Matrix<const Acc<T>> matrix_{};
};

/// An output tensor as A, to be added to: the tensor itself, or for 16-bit types a copy that store() rounds back.
template <class T>
class WidenedOutput {
 public:
  /// Without `keep` the values are to be set by the first gemm.
  WidenedOutput(const Tensor& tensor, bool keep) : tensor_(tensor) {
    if constexpr (is_narrow<T>) {
      copy_.resize(static_cast<std::size_t>(tensor.numel()));
      if (keep) {
        const Rows<T> from = rows_of<T>(tensor);
        for (std::int64_t row = 0; row < tensor.rows; ++row)
          for (std::int64_t col = 0; col < tensor.cols; ++col) matrix_row(row)[col] = widen(from[row][col]);
      }
    }
  }
  Matrix<Acc<T>> matrix() {
    if constexpr (is_narrow<T>)
      return {copy_.data(), tensor_.rows, tensor_.cols, tensor_.cols};
    else
      return {tensor_.as<T>(), tensor_.rows, tensor_.cols, tensor_.stride};
  }
  void store() {
    if constexpr (is_narrow<T>) {
      const Rows<T> to = rows_of<T>(tensor_);
      for (std::int64_t row = 0; row < tensor_.rows; ++row)
        for (std::int64_t col = 0; col < tensor_.cols; ++col) to[row][col] = narrow<T>(matrix_row(row)[col]);
    }
  }

 private:
  Acc<T>* matrix_row(std::int64_t row) { return copy_.data() + row * tensor_.cols; }

  Tensor tensor_;
  std::vector<Acc<T>> copy_;
};

}  // namespace trainer::ops::cpu
