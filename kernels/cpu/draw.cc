// Random tensors. The bits are those of the card: this file is compiled without fused multiply-add.
#include "kernels/cpu/common.h"

namespace trainer::ops::cpu {

void draw_normal(const Context& /*ctx*/, const DrawNormalArgs& args) {
  const Rows<double> out = rows_of<double>(args.out);
  constexpr std::int64_t kCost = 16;  // of a draw, in accesses to memory
  parallel_for(args.out.rows, kCost * args.out.cols, [&](std::int64_t r) {
    const std::int64_t first = (args.first_row + r) * args.total_cols + args.first_col;
    for (std::int64_t c = 0; c < args.out.cols; ++c)
      out[r][c] = args.std * normal_at(args.key, static_cast<std::uint64_t>(first + c));
  });
}

}  // namespace trainer::ops::cpu
