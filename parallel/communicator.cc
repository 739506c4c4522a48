#include "parallel/communicator.h"

#include "kernels/ops.h"

namespace trainer {

void Communicator::reduce_scatter_into(const Context& ctx, const Tensor& in, const Tensor& sum, bool accumulate) {
  if (in.dtype == sum.dtype && !accumulate) return reduce_scatter(ctx, in, sum);
  const Tensor part = own_part(*this, in, sum);
  reduce_scatter(ctx, in, part);
  ops::sum_parts(ctx, {.parts = part, .accumulate = accumulate, .out = sum.flat()});
}

void check_all_reduce(const Tensor& data) {
  TRAINER_CHECK(data.contiguous(), "collectives take contiguous tensors");
}

void check_reduce_scatter(const Communicator& group, const Tensor& in, const Tensor& out) {
  TRAINER_CHECK(
      in.contiguous() && out.contiguous() && in.dtype == out.dtype && in.numel() == out.numel() * group.size(),
      "reduce_scatter of {} {} elements into {} {} on {} ranks", in.numel(), dtype_name(in.dtype), out.numel(),
      dtype_name(out.dtype), group.size());
}

void check_all_gather(const Communicator& group, const Tensor& in, const Tensor& out) {
  TRAINER_CHECK(
      in.contiguous() && out.contiguous() && in.dtype == out.dtype && out.numel() == in.numel() * group.size(),
      "all_gather of {} {} elements into {} {} on {} ranks", in.numel(), dtype_name(in.dtype), out.numel(),
      dtype_name(out.dtype), group.size());
}

void check_rotate(const Communicator& group, const Tensor& in, const Tensor& out, int shift) {
  TRAINER_CHECK(in.contiguous() && out.contiguous() && in.dtype == out.dtype && in.numel() == out.numel() &&
                    shift >= 0 && shift < group.size(),
                "rotate of {} {} elements into {} {} by {} of {} ranks", in.numel(), dtype_name(in.dtype), out.numel(),
                dtype_name(out.dtype), shift, group.size());
}

void check_broadcast(const Communicator& group, const Tensor& data, int root) {
  TRAINER_CHECK(data.contiguous() && root >= 0 && root < group.size(), "broadcast from root {} of {} ranks", root,
                group.size());
}

}  // namespace trainer
