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

}  // namespace trainer::ops
