// What the CPU bodies share: element types, rows, checks, parallel loops and sums whose order never changes.
#pragma once
#include <algorithm>
#include <cstdint>

#include "core/runtime/check.h"
#include "core/runtime/divide.h"
#include "core/runtime/dtype.h"
#include "core/runtime/rng.h"
#include "core/runtime/tensor.h"
#include "kernels/ops.h"
#include "kernels/shapes.h"

namespace trainer::ops::cpu {

/// The type A of sums and statistics for elements of type T.
template <class T>
struct Accumulator {
  using type = float;
};
template <>
struct Accumulator<double> {
  using type = double;
};
template <class T>
using Acc = typename Accumulator<T>::type;

template <class T>
Acc<T> widen(T value) {
  return static_cast<Acc<T>>(value);
}
/// Rounds to nearest even.
template <class T>
T narrow(Acc<T> value) {
  return static_cast<T>(value);
}

/// Hands a type to a generic lambda: visit_float(dtype, [&]<class T>(TypeTag<T>) { ... }).
template <class T>
struct TypeTag {};

template <class F>
void visit_float(Dtype dtype, const F& body) {
  switch (dtype) {
    case Dtype::f64:
      return body(TypeTag<double>{});
    case Dtype::f32:
      return body(TypeTag<float>{});
    case Dtype::bf16:
      return body(TypeTag<Bfloat16>{});
    case Dtype::f16:
      return body(TypeTag<Float16>{});
    default:
      TRAINER_CHECK(false, "{} is not a floating type", dtype_name(dtype));
  }
}

/// A tensor with its element type: x[row][col].
template <class T>
struct Rows {
  T* data;
  std::int64_t stride;
  T* operator[](std::int64_t row) const { return data + row * stride; }
};
template <class T>
Rows<T> rows_of(const Tensor& tensor) {
  return {tensor.as<T>(), tensor.stride};
}

/// body(i) for i in [0, n), on several threads when there is enough work. `cost`: elements that one call touches.
template <class F>
void parallel_for(std::int64_t n, std::int64_t cost, const F& body) {
  constexpr std::int64_t kWorthThreads = 16384;
#pragma omp parallel for schedule(static) if (n > 1 && n * cost >= kWorthThreads)
  for (std::int64_t i = 0; i < n; ++i) body(i);
}

/// out[c] (+)= sum over rows of value(row, c). The rows are added in order and in double, so that the result depends
/// neither on the number of threads nor, noticeably, on the number of rows.
template <class A, class F>
void sum_columns(std::int64_t rows, std::int64_t cols, const F& value, A* out, bool accumulate) {
  constexpr std::int64_t kBlock = 64;
  parallel_for(ceil_div(cols, kBlock), rows * kBlock, [&](std::int64_t block) {
    const std::int64_t first = block * kBlock;
    const std::int64_t width = std::min(kBlock, cols - first);
    double sums[kBlock] = {};
    for (std::int64_t row = 0; row < rows; ++row)
      for (std::int64_t c = 0; c < width; ++c) sums[c] += static_cast<double>(value(row, first + c));
    for (std::int64_t c = 0; c < width; ++c) {
      const double before = accumulate ? static_cast<double>(out[first + c]) : 0.0;
      out[first + c] = static_cast<A>(before + sums[c]);
    }
  });
}

/// factors[i] = 0 for a dropped element, 1 / (1 - p) for a kept one, for elements first .. first + n of the stream:
/// element e is kept iff uniform_at(key, e) >= p. One Philox block serves four elements.
template <class A>
void dropout_factors(const DropoutKey& dropout, std::uint64_t first, std::int64_t n, A* factors) {
  const A kept = static_cast<A>(1.0 / (1.0 - dropout.p));
  for (std::int64_t i = 0; i < n;) {
    const std::uint64_t element = first + static_cast<std::uint64_t>(i);
    const Philox4 block = philox(dropout.key, element >> 2);
    for (std::uint64_t lane = element & 3; lane < 4 && i < n; ++lane, ++i)
      factors[i] = uniform_from_bits(block.v[lane]) >= dropout.p ? kept : A{0};
  }
}

/// x times a dropout factor; a dropped element is zero whatever it was.
template <class A>
A apply_dropout(A x, A factor) {
  return factor == A{0} ? A{0} : x * factor;
}

}  // namespace trainer::ops::cpu
