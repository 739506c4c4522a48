#include "parallel/profiled_communicator.h"

#include "kernels/op_profiler.h"

namespace trainer {
namespace {

/// Runs one collective of `group` under its name, in which ops of its own are not told apart. Groups of one rank do
/// nothing worth a name.
template <class Collective>
void profiled(const Context& ctx, const Communicator& group, const char* name, const Tensor& whole,
              const Collective& collective) {
  if (group.size() == 1) return collective(ctx);
  const TraceRange range(ctx, name);
  if (ctx.profiler != nullptr) ctx.profiler->is_collective(whole.bytes(), group.name());
  Context whole_only = ctx;
  whole_only.profiler = nullptr;
  collective(whole_only);
}

}  // namespace

void ProfiledCommunicator::all_reduce(const Context& ctx, const Tensor& data, ReduceOp op) {
  profiled(ctx, *inner_, "all_reduce", data, [&](const Context& inner) { inner_->all_reduce(inner, data, op); });
}

void ProfiledCommunicator::reduce_scatter(const Context& ctx, const Tensor& in, const Tensor& out) {
  profiled(ctx, *inner_, "reduce_scatter", in, [&](const Context& inner) { inner_->reduce_scatter(inner, in, out); });
}

void ProfiledCommunicator::reduce_scatter_into(const Context& ctx, const Tensor& in, const Tensor& sum,
                                               bool accumulate) {
  profiled(ctx, *inner_, "reduce_scatter", in,
           [&](const Context& inner) { inner_->reduce_scatter_into(inner, in, sum, accumulate); });
}

void ProfiledCommunicator::all_gather(const Context& ctx, const Tensor& in, const Tensor& out) {
  profiled(ctx, *inner_, "all_gather", out, [&](const Context& inner) { inner_->all_gather(inner, in, out); });
}

void ProfiledCommunicator::rotate(const Context& ctx, const Tensor& in, const Tensor& out, int shift) {
  profiled(ctx, *inner_, shift == 0 ? "copy" : "rotate", in,
           [&](const Context& inner) { inner_->rotate(inner, in, out, shift); });
}

void ProfiledCommunicator::broadcast(const Context& ctx, const Tensor& data, int root) {
  profiled(ctx, *inner_, "broadcast", data, [&](const Context& inner) { inner_->broadcast(inner, data, root); });
}

std::unique_ptr<Communicator> ProfiledCommunicator::split(int color, int key, const std::string& name) {
  return std::make_unique<ProfiledCommunicator>(inner_->split(color, key, name));
}

}  // namespace trainer
