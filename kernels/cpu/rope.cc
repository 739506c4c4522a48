// Rotary position embedding.
#include "kernels/cpu/common.h"

namespace trainer::ops::cpu {

void rope(const Context&, const RopeArgs& args) {
  const std::int64_t tokens = args.x.rows, half = args.cos_sin.cols / 2;
  TRAINER_CHECK(args.heads > 0 && args.x.cols % args.heads == 0, "rope: {} columns in {} heads", args.x.cols,
                args.heads);
  const std::int64_t head_dim = args.x.cols / args.heads;
  check_shape(args.positions, "rope: positions", Dtype::i32, 1, tokens);
  check_shape(args.cos_sin, "rope: cos_sin", accumulator_dtype(args.x.dtype), args.cos_sin.rows, 2 * half);
  TRAINER_CHECK(2 * half <= head_dim, "rope: rotates {} of {} elements", 2 * half, head_dim);
  const auto* positions = args.positions.as<std::int32_t>();
  for (std::int64_t n = 0; n < tokens; ++n)
    TRAINER_CHECK(positions[n] >= 0 && positions[n] < args.cos_sin.rows, "rope: position {} of token {}, table has {}",
                  positions[n], n, args.cos_sin.rows);
  visit_float(args.x.dtype, [&]<class T>(TypeTag<T>) {
    using A = Acc<T>;
    const Rows<T> x = rows_of<T>(args.x);
    const Rows<A> table = rows_of<A>(args.cos_sin);
    const A direction = args.inverse ? A{-1} : A{1};
    parallel_for(tokens, args.heads * 2 * half, [&](std::int64_t n) {
      const A* cos = table[positions[n]];
      const A* sin = cos + half;
      for (std::int64_t head = 0; head < args.heads; ++head) {
        T* first = x[n] + head * head_dim;
        T* second = first + half;
        for (std::int64_t i = 0; i < half; ++i) {
          const A a = widen(first[i]), b = widen(second[i]), s = direction * sin[i];
          first[i] = narrow<T>(a * cos[i] - b * s);
          second[i] = narrow<T>(b * cos[i] + a * s);
        }
      }
    });
  });
}

}  // namespace trainer::ops::cpu
