// Checks of op arguments, for the CPU and the CUDA bodies (C++17).
#pragma once
#include <cstdint>

#include "core/runtime/check.h"
#include "core/runtime/tensor.h"

namespace trainer::ops {

/// Throws unless `tensor` is dtype [rows, cols]. `name` reads "op: argument".
inline void check_shape(const Tensor& tensor, const char* name, Dtype dtype, std::int64_t rows, std::int64_t cols) {
  TRAINER_CHECK(tensor.dtype == dtype && tensor.rows == rows && tensor.cols == cols,
                "{} is {} [{}, {}], expected {} [{}, {}]", name, dtype_name(tensor.dtype), tensor.rows, tensor.cols,
                dtype_name(dtype), rows, cols);
}

/// The elements of a vector, [n, 1] or [1, n], which must be contiguous; null when it is absent.
template <class T>
T* vector_of(const Tensor& tensor, const char* name, std::int64_t n) {
  if (!tensor) return nullptr;
  TRAINER_CHECK(tensor.numel() == n && tensor.contiguous(), "{} is [{}, {}] with stride {}, expected {} elements", name,
                tensor.rows, tensor.cols, tensor.stride, n);
  return tensor.as<T>();
}

/// How many tensors of the shape of `whole` lie one behind the other in `parts`.
inline std::int64_t parts_of(const Tensor& parts, const Tensor& whole, const char* name) {
  TRAINER_CHECK(parts.dtype == whole.dtype && parts.cols == whole.cols && whole.rows > 0 && parts.rows > 0 &&
                    parts.rows % whole.rows == 0,
                "{}: parts are {} [{}, {}] of {} [{}, {}]", name, dtype_name(parts.dtype), parts.rows, parts.cols,
                dtype_name(whole.dtype), whole.rows, whole.cols);
  return parts.rows / whole.rows;
}

}  // namespace trainer::ops
