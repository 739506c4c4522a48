#include "parallel/profiled_communicator.h"

#include "kernels/op_profiler.h"

namespace trainer {
namespace {

/// Runs one collective of `group` under its name. Groups of one rank do nothing worth a name.
template <class Collective>
void profiled(const Context& ctx, const Communicator& group, const char* name, const Tensor& whole,
              const Collective& collective) {
  if (group.size() == 1) return collective();
  const TraceRange range(ctx, name);
  if (ctx.profiler != nullptr) ctx.profiler->is_collective(whole.bytes(), group.name());
  collective();
}

}  // namespace

void ProfiledCommunicator::all_reduce(const Context& ctx, const Tensor& data, ReduceOp op) {
  profiled(ctx, *inner_, "all_reduce", data, [&] { inner_->all_reduce(ctx, data, op); });
}

void ProfiledCommunicator::reduce_scatter(const Context& ctx, const Tensor& in, const Tensor& out) {
  profiled(ctx, *inner_, "reduce_scatter", in, [&] { inner_->reduce_scatter(ctx, in, out); });
}

void ProfiledCommunicator::all_gather(const Context& ctx, const Tensor& in, const Tensor& out) {
  profiled(ctx, *inner_, "all_gather", out, [&] { inner_->all_gather(ctx, in, out); });
}

void ProfiledCommunicator::rotate(const Context& ctx, const Tensor& in, const Tensor& out, int shift) {
  profiled(ctx, *inner_, shift == 0 ? "copy" : "rotate", in, [&] { inner_->rotate(ctx, in, out, shift); });
}

void ProfiledCommunicator::broadcast(const Context& ctx, const Tensor& data, int root) {
  profiled(ctx, *inner_, "broadcast", data, [&] { inner_->broadcast(ctx, data, root); });
}

std::unique_ptr<Communicator> ProfiledCommunicator::split(int color, int key, const std::string& name) {
  return std::make_unique<ProfiledCommunicator>(inner_->split(color, key, name));
}

}  // namespace trainer
