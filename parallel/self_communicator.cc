#include "parallel/self_communicator.h"

#include "core/runtime/device.h"

namespace trainer {
namespace {

void copy_tensor(const Context& ctx, const Tensor& in, const Tensor& out) {
  TRAINER_CHECK(in.contiguous() && out.contiguous(), "collectives take contiguous tensors");
  TRAINER_CHECK(in.dtype == out.dtype && in.numel() == out.numel(), "{} {} elements into {} {}", in.numel(),
                dtype_name(in.dtype), out.numel(), dtype_name(out.dtype));
  if (in.data != out.data && in.numel() > 0) copy(ctx, out.data, in.data, in.bytes());
}

}  // namespace

void SelfCommunicator::all_reduce(const Context& ctx, const Tensor& data, ReduceOp /*op*/) {
  copy_tensor(ctx, data, data);
}

void SelfCommunicator::reduce_scatter(const Context& ctx, const Tensor& in, const Tensor& out) {
  copy_tensor(ctx, in, out);
}

void SelfCommunicator::all_gather(const Context& ctx, const Tensor& in, const Tensor& out) {
  copy_tensor(ctx, in, out);
}

void SelfCommunicator::rotate(const Context& ctx, const Tensor& in, const Tensor& out, int shift) {
  check_rotate(*this, in, out, shift);
  copy_tensor(ctx, in, out);
}

void SelfCommunicator::broadcast(const Context& ctx, const Tensor& data, int root) {
  TRAINER_CHECK(root == 0, "root {} of a group of one rank", root);
  copy_tensor(ctx, data, data);
}

std::unique_ptr<Communicator> SelfCommunicator::split(int /*color*/, int /*key*/, const std::string& name) {
  return std::make_unique<SelfCommunicator>(name);
}

}  // namespace trainer
