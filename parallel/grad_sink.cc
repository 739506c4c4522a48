#include "parallel/grad_sink.h"

#include <algorithm>

#include "kernels/ops.h"

namespace trainer {

ReducingGradSink::ReducingGradSink(const ParamLayout& layout, const Mesh& mesh, Dtype accumulator, Dtype wire,
                                   Arena& arena)
    : layout_(layout), mesh_(mesh) {
  std::int64_t longest = 0;
  for (int block = 0; block < layout.num_blocks(); ++block) {
    blocks_.push_back(arena.take(MemoryClass::gradients, "gradients", 1, layout.numel(block), accumulator));
    longest = std::max(longest, layout.numel(block));
  }
  // Without other dp ranks there is no wire, and so no rounding to its type.
  if (wire != accumulator && mesh.dp().size() > 1)
    wire_ = arena.take(MemoryClass::communication, "gradients on the wire", 1, longest, wire);
}

void ReducingGradSink::begin_micro_batch(bool first, bool last) {
  accumulate_ = !first;
  last_ = last;
}

Tensor ReducingGradSink::grads(int block) {
  return blocks_[static_cast<std::size_t>(block)];
}

void ReducingGradSink::ready(const Context& ctx, int block) {
  if (!last_) return;
  const Tensor whole = grads(block);
  for (const FlatRange& range : layout_.tp_partial(block))
    mesh_.tp().all_reduce(ctx, whole.flat_range(range.first, range.count), ReduceOp::sum);
  for (const FlatRange& range : layout_.kv_partial(block))
    mesh_.kv_replicas().all_reduce(ctx, whole.flat_range(range.first, range.count), ReduceOp::sum);
  reduce_over_dp(ctx, block);
}

void ReducingGradSink::reduce_over_dp(const Context& ctx, int block) {
  if (mesh_.dp().size() == 1) return;
  const Tensor whole = wire_ ? wire_.flat_range(0, layout_.numel(block)) : grads(block);
  if (wire_) ops::cast(ctx, {.in = grads(block), .out = whole});
  Communicator& zero = mesh_.zero();
  const FlatRange range = layout_.shard(block, zero.rank(), zero.size());
  const Tensor part = whole.flat_range(range.first, range.count);
  if (zero.size() > 1) zero.reduce_scatter(ctx, whole, part);
  if (mesh_.zero_replicas().size() > 1) mesh_.zero_replicas().all_reduce(ctx, part, ReduceOp::sum);
  if (wire_) ops::cast(ctx, {.in = part, .out = shard(block)});
}

Tensor ReducingGradSink::shard(int block) {
  const Communicator& zero = mesh_.zero();
  const FlatRange range = layout_.shard(block, zero.rank(), zero.size());
  return grads(block).flat_range(range.first, range.count);
}

}  // namespace trainer
