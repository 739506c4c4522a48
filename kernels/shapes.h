// Checks of op arguments, for the CPU and the CUDA bodies (C++17).
#pragma once
#include <cstdint>

#include "core/runtime/check.h"
#include "core/runtime/tensor.h"
#include "kernels/ops.h"

namespace trainer::ops {

/// Throws unless `tensor` is dtype [rows, cols]. `name` reads "op: argument".
inline void check_shape(const Tensor& tensor, const char* name, Dtype dtype, std::int64_t rows, std::int64_t cols) {
  TRAINER_CHECK(tensor.dtype == dtype && tensor.rows == rows && tensor.cols == cols,
                "{} is {} [{}, {}], expected {} [{}, {}]", name, dtype_name(tensor.dtype), tensor.rows, tensor.cols,
                dtype_name(dtype), rows, cols);
}

/// Throws unless a gradient of type `dw` can be asked for of activations of type `dy`: sums are added to in A only.
inline void check_weight_gradient(Dtype dy, Dtype dw, bool accumulate) {
  TRAINER_CHECK(dw == accumulator_dtype(dy) || (dw == dy && !accumulate), "linear_backward_weight: dw is {}{}, dy {}",
                dtype_name(dw), accumulate ? " to be added to" : "", dtype_name(dy));
}

/// The elements of a vector, [n, 1] or [1, n], which must be contiguous; null when it is absent.
template <class T>
T* vector_of(const Tensor& tensor, const char* name, std::int64_t n) {
  if (!tensor) return nullptr;
  TRAINER_CHECK(tensor.numel() == n && tensor.contiguous(), "{} is [{}, {}] with stride {}, expected {} elements", name,
                tensor.rows, tensor.cols, tensor.stride, n);
  return tensor.as<T>();
}

/// How many tensors of the shape of `sum` lie one behind the other in `parts`. The sum is of their type or of the type
/// of sums.
inline std::int64_t parts_of(const Tensor& parts, const Tensor& sum, const char* name) {
  const bool types = sum.dtype == parts.dtype || sum.dtype == accumulator_dtype(parts.dtype);
  TRAINER_CHECK(types && parts.cols == sum.cols && sum.rows > 0 && parts.rows > 0 && parts.rows % sum.rows == 0,
                "{}: parts are {} [{}, {}] of {} [{}, {}]", name, dtype_name(parts.dtype), parts.rows, parts.cols,
                dtype_name(sum.dtype), sum.rows, sum.cols);
  return parts.rows / sum.rows;
}

}  // namespace trainer::ops
