#include "parallel/communicator.h"

#include "kernels/ops.h"

namespace trainer {

void Communicator::reduce_scatter_add(const Context& ctx, const Tensor& in, const Tensor& sum) {
  const Tensor part = own_part(*this, in, sum);
  reduce_scatter(ctx, in, part);
  ops::add(ctx, {.a = sum, .b = part, .out = sum});
}

}  // namespace trainer
