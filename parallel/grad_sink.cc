#include "parallel/grad_sink.h"

#include <algorithm>

#include "core/runtime/device.h"
#include "kernels/ops.h"

namespace trainer {

ReducingGradSink::ReducingGradSink(const ParamLayout& layout, const Mesh& mesh, const Options& options,
                                   CommQueue& queue, Arena& arena)
    : layout_(layout),
      mesh_(mesh),
      queue_(queue),
      assignment_(layout, options.tied),
      sharded_(options.sharded && mesh.zero().size() > 1),
      reduced_(queue.device()) {
  std::int64_t longest = 0;
  for (int block = 0; block < layout.num_blocks(); ++block) {
    const std::int64_t kept = sharded_ ? range(block).count : layout.numel(block);
    blocks_.push_back(arena.take(MemoryClass::gradients, "gradients", 1, kept, options.accumulator));
    longest = std::max(longest, layout.numel(block));
  }
  if (sharded_)
    for (const Tensor& buffer : assignment_.take(layout, "gradients of a block", options.accumulator, arena))
      slots_.push_back({.buffer = buffer, .reduced = Event(queue.device())});
  // Without other dp ranks there is no wire, and so no rounding to its type.
  if (options.wire != options.accumulator && mesh.dp().size() > 1)
    wire_ = arena.take(MemoryClass::communication, "gradients on the wire", 1, longest, options.wire);
  std::int64_t partial = 0;
  for_each_partial([&](const Tensor& part) { partial += part.numel(); });
  if (partial > 0)
    partial_ = arena.take(MemoryClass::communication, "partial gradients", 1, partial, options.accumulator);
}

template <class Use>
void ReducingGradSink::for_each_partial(const Use& use) {
  for (int block = 0; block < layout_.num_blocks(); ++block) {
    const FlatRange kept = range(block);
    for (const FlatRange& part : layout_.tp_partial(block)) {
      const std::int64_t first = std::max(part.first, kept.first);
      const std::int64_t end = std::min(part.first + part.count, kept.first + kept.count);
      if (first < end) use(shard(block).flat_range(first - kept.first, end - first));
    }
  }
}

void ReducingGradSink::begin_micro_batch(bool first, bool last) {
  first_ = first;
  last_ = last;
}

FlatRange ReducingGradSink::range(int block) const {
  return layout_.shard(block, mesh_.zero().rank(), mesh_.zero().size());
}

Tensor ReducingGradSink::whole(int block) const {
  return sharded_ ? slots_[slot(block)].buffer.flat_range(0, layout_.numel(block))
                  : blocks_[static_cast<std::size_t>(block)];
}

Tensor ReducingGradSink::shard(int block) {
  const Tensor& kept = blocks_[static_cast<std::size_t>(block)];
  return sharded_ ? kept : kept.flat_range(range(block).first, range(block).count);
}

Tensor ReducingGradSink::grads(const Context& ctx, int block) {
  if (sharded_) slots_[slot(block)].reduced.wait(ctx);  // of the block that had the slot before
  return whole(block);
}

void ReducingGradSink::ready(const Context& ctx, int block) {
  if (!sharded_ && !last_) return;
  add_over_kv_replicas(ctx, block);
  if (mesh_.dp().size() == 1) return;
  const Context& comm = queue_.after(ctx);
  if (sharded_) {
    reduce_sharded(comm, block);
    slots_[slot(block)].reduced.record(comm);
  } else {
    reduce_kept(comm, block);
  }
  reduced_.record(comm);
}

void ReducingGradSink::finish(const Context& ctx) {
  reduced_.wait(ctx);
  if (last_) add_over_tp(ctx);
}

/// In the order of the computation, with which tp is busy.
void ReducingGradSink::add_over_kv_replicas(const Context& ctx, int block) {
  for (const FlatRange& range : layout_.kv_partial(block))
    mesh_.kv_replicas().all_reduce(ctx, whole(block).flat_range(range.first, range.count), ReduceOp::sum);
}

/// One collective costs what one of a block would.
void ReducingGradSink::add_over_tp(const Context& ctx) {
  if (!partial_) return;
  std::int64_t at = 0;
  const auto next = [&](const Tensor& part) {
    const Tensor here = partial_.flat_range(at, part.numel());
    at += part.numel();
    return here;
  };
  for_each_partial([&](const Tensor& part) { copy(ctx, next(part).data, part.data, part.bytes()); });
  mesh_.tp().all_reduce(ctx, partial_, ReduceOp::sum);
  at = 0;
  for_each_partial([&](const Tensor& part) { copy(ctx, part.data, next(part).data, part.bytes()); });
}

Tensor ReducingGradSink::outgoing(const Context& comm, int block) {
  if (!wire_) return whole(block);
  const Tensor copy = wire_.flat_range(0, layout_.numel(block));
  ops::cast(comm, {.in = whole(block), .out = copy});
  return copy;
}

void ReducingGradSink::add_replicas(const Context& comm, const Tensor& part) {
  if (mesh_.zero_replicas().size() > 1) mesh_.zero_replicas().all_reduce(comm, part, ReduceOp::sum);
}

void ReducingGradSink::reduce_kept(const Context& comm, int block) {
  const Tensor sent = outgoing(comm, block);
  const Tensor part = sent.flat_range(range(block).first, range(block).count);
  if (mesh_.zero().size() > 1) mesh_.zero().reduce_scatter(comm, sent, part);
  add_replicas(comm, part);
  if (wire_) ops::cast(comm, {.in = part, .out = shard(block)});
}

void ReducingGradSink::reduce_sharded(const Context& comm, int block) {
  const Tensor sent = outgoing(comm, block);
  const Tensor sum = shard(block);
  mesh_.zero().reduce_scatter_into(comm, sent, sum, /*accumulate=*/!first_);
  if (!last_ || mesh_.zero_replicas().size() == 1) return;
  const Tensor part = own_part(mesh_.zero(), sent, sum);
  if (wire_) ops::cast(comm, {.in = sum, .out = part});
  add_replicas(comm, wire_ ? part : sum);
  if (wire_) ops::cast(comm, {.in = part, .out = sum});
}

}  // namespace trainer
