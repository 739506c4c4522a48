#include "parallel/communicator.h"

#include "kernels/ops.h"

namespace trainer {

void Communicator::reduce_scatter_into(const Context& ctx, const Tensor& in, const Tensor& sum, bool accumulate) {
  if (in.dtype == sum.dtype && !accumulate) return reduce_scatter(ctx, in, sum);
  const Tensor part = own_part(*this, in, sum);
  reduce_scatter(ctx, in, part);
  ops::sum_parts(ctx, {.parts = part, .accumulate = accumulate, .out = sum.flat()});
}

}  // namespace trainer
