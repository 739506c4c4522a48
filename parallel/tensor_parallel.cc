#include "parallel/tensor_parallel.h"

namespace trainer {

Tensor TensorParallel::enter(const Context& ctx, const Tensor& local, const Tensor& full) const {
  if (!sequence_parallel_) return local;
  tp_.all_gather(ctx, local, full);
  return full;
}

Tensor TensorParallel::leave(const Context& ctx, const Tensor& partial, const Tensor& local) const {
  if (sequence_parallel_) {
    tp_.reduce_scatter(ctx, partial, local);
    return local;
  }
  if (size() > 1) tp_.all_reduce(ctx, partial, ReduceOp::sum);
  return partial;
}

}  // namespace trainer
