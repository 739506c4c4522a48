#include "parallel/reduce.h"

#include <algorithm>
#include <type_traits>

#include "core/runtime/check.h"

namespace trainer {
namespace {

constexpr std::int64_t kBlock = 512;  // accumulators of one block stay in the first-level cache

template <class T>
struct AccumulatorOf {
  using type = T;
};
template <>
struct AccumulatorOf<Bfloat16> {
  using type = float;
};
template <>
struct AccumulatorOf<Float16> {
  using type = float;
};

template <class A>
A combine(ReduceOp op, A a, A b) {
  switch (op) {
    case ReduceOp::max:
      return a < b || b != b ? b : a;  // NOLINT(misc-redundant-expression): b != b is true for NaN only
    case ReduceOp::min:
      return b < a || b != b ? b : a;  // NOLINT(misc-redundant-expression)
    case ReduceOp::sum:
      break;
  }
  if constexpr (std::is_integral_v<A>)
    // Unsigned arithmetic: overflow wraps and is defined.
    return static_cast<A>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
  else
    return a + b;
}

template <class T, ReduceOp op>
void reduce_blocks(const void* const* sources, int count, std::int64_t n, void* out) {
  using A = typename AccumulatorOf<T>::type;
  A sums[kBlock];
  for (std::int64_t first = 0; first < n; first += kBlock) {
    const std::int64_t block = std::min(kBlock, n - first);
    for (int s = 0; s < count; ++s) {
      const T* source = static_cast<const T*>(sources[s]) + first;
      if (s == 0)
        for (std::int64_t i = 0; i < block; ++i) sums[i] = static_cast<A>(source[i]);
      else
        for (std::int64_t i = 0; i < block; ++i) sums[i] = combine(op, sums[i], static_cast<A>(source[i]));
    }
    T* target = static_cast<T*>(out) + first;
    for (std::int64_t i = 0; i < block; ++i) target[i] = static_cast<T>(sums[i]);
  }
}

template <class T>
void reduce_typed(ReduceOp op, const void* const* sources, int count, std::int64_t n, void* out) {
  switch (op) {
    case ReduceOp::sum:
      return reduce_blocks<T, ReduceOp::sum>(sources, count, n, out);
    case ReduceOp::max:
      return reduce_blocks<T, ReduceOp::max>(sources, count, n, out);
    case ReduceOp::min:
      return reduce_blocks<T, ReduceOp::min>(sources, count, n, out);
  }
}

}  // namespace

void reduce_in_order(Dtype dtype, ReduceOp op, const void* const* sources, int count, std::int64_t n, void* out) {
  TRAINER_CHECK(count > 0, "nothing to reduce");
  switch (dtype) {
    case Dtype::f64:
      return reduce_typed<double>(op, sources, count, n, out);
    case Dtype::f32:
      return reduce_typed<float>(op, sources, count, n, out);
    case Dtype::bf16:
      return reduce_typed<Bfloat16>(op, sources, count, n, out);
    case Dtype::f16:
      return reduce_typed<Float16>(op, sources, count, n, out);
    case Dtype::i32:
      return reduce_typed<std::int32_t>(op, sources, count, n, out);
    case Dtype::i64:
      return reduce_typed<std::int64_t>(op, sources, count, n, out);
    case Dtype::u16:
      return reduce_typed<std::uint16_t>(op, sources, count, n, out);
    case Dtype::u8:
      return reduce_typed<std::uint8_t>(op, sources, count, n, out);
  }
}

}  // namespace trainer
