// Table look-up and its gradient.
#include "kernels/cpu/common.h"

namespace trainer::ops::cpu {

void embedding_forward(const Context&, const EmbeddingForwardArgs& args) {
  const std::int64_t tokens = args.out.rows, width = args.out.cols;
  check_shape(args.ids, "embedding_forward: ids", Dtype::i32, 1, tokens);
  check_shape(args.weight, "embedding_forward: weight", args.out.dtype, args.weight.rows, width);
  visit_float(args.out.dtype, [&]<class T>(TypeTag<T>) {
    const Rows<T> weight = rows_of<T>(args.weight), out = rows_of<T>(args.out);
    const auto* ids = args.ids.as<std::int32_t>();
    parallel_for(tokens, width, [&](std::int64_t n) {
      const std::int64_t row = ids[n] - args.first_row;
      const bool here = row >= 0 && row < args.weight.rows;
      if (!args.accumulate) {
        if (here)
          std::copy_n(weight[row], width, out[n]);
        else
          std::fill_n(out[n], width, T{});
      } else if (here) {
        for (std::int64_t c = 0; c < width; ++c) out[n][c] = narrow<T>(widen(out[n][c]) + widen(weight[row][c]));
      }
    });
  });
}

void embedding_backward(const Context&, const EmbeddingBackwardArgs& args) {
  const std::int64_t tokens = args.dout.rows, width = args.dout.cols;
  check_shape(args.ids, "embedding_backward: ids", Dtype::i32, 1, tokens);
  check_shape(args.dweight, "embedding_backward: dweight", accumulator_dtype(args.dout.dtype), args.dweight.rows,
              width);
  visit_float(args.dout.dtype, [&]<class T>(TypeTag<T>) {
    using A = Acc<T>;
    const Rows<T> dout = rows_of<T>(args.dout);
    const Rows<A> dweight = rows_of<A>(args.dweight);
    const auto* ids = args.ids.as<std::int32_t>();
    // A thread owns columns, not tokens: each element is added to in the order of the tokens.
    constexpr std::int64_t kBlock = 64;
    parallel_for(ceil_div(width, kBlock), tokens * kBlock, [&](std::int64_t block) {
      const std::int64_t begin = block * kBlock, end = std::min(width, begin + kBlock);
      if (!args.accumulate)
        for (std::int64_t row = 0; row < args.dweight.rows; ++row)
          std::fill(dweight[row] + begin, dweight[row] + end, A{0});
      for (std::int64_t n = 0; n < tokens; ++n) {
        const std::int64_t row = ids[n] - args.first_row;
        if (row < 0 || row >= args.dweight.rows) continue;
        for (std::int64_t c = begin; c < end; ++c) dweight[row][c] += widen(dout[n][c]);
      }
    });
  });
}

}  // namespace trainer::ops::cpu
