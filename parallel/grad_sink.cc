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
      direct_(sharded_ && options.wire != options.accumulator && options.wire == options.weights),
      reduced_(queue.device()) {
  for (int block = 0; block < layout.num_blocks(); ++block) {
    const std::int64_t kept = sharded_ ? range(block).count : layout.numel(block);
    blocks_.push_back(arena.take(MemoryClass::gradients, "gradients", 1, kept, options.accumulator));
    // Replicated KV heads are added in A before they are rounded.
    direct_ = direct_ && layout.kv_partial(block).empty();
  }
  if (sharded_) take_slots(options, arena);
  // Without other dp ranks there is no wire, and so no rounding to its type.
  if (options.wire != options.accumulator && mesh.dp().size() > 1) take_wire(options, arena);
  std::int64_t partial = 0;
  for_each_partial([&](const Tensor& part) { partial += part.numel(); });
  if (partial > 0)
    partial_ = arena.take(MemoryClass::communication, "partial gradients", 1, partial, options.accumulator);
}

void ReducingGradSink::take_slots(const Options& options, Arena& arena) {
  const auto flat = assignment_.take(
      "gradients of a block", [&](int block) { return layout_.numel(block); },
      [&](int block) { return direct(block) ? options.wire : options.accumulator; }, arena);
  const auto vectors = assignment_.take(
      "gradients of a block's vectors", [&](int block) { return direct(block) ? layout_.vector_numel(block) : 0; },
      [&](int /*block*/) { return options.accumulator; }, arena);
  for (std::size_t i = 0; i < flat.size(); ++i)
    slots_.push_back({.grads = {.flat = flat[i], .vectors = vectors[i]}, .reduced = Event(queue_.device())});
}

void ReducingGradSink::take_wire(const Options& options, Arena& arena) {
  const std::int64_t ranks = mesh_.zero().size();
  constexpr std::int64_t kAligned = ParamLayout::kAlignment;  // shards are multiples of it, and so are their pieces
  const std::int64_t piece = std::max<std::int64_t>(options.wire_numel / ranks / kAligned, 1) * kAligned;
  std::int64_t longest = 0;
  for (int block = 0; block < layout_.num_blocks(); ++block)
    if (!direct(block))
      longest = std::max(longest, sharded_ ? ranks * std::min(piece, range(block).count) : layout_.numel(block));
  wire_ = arena.take(MemoryClass::communication, "gradients on the wire", 1, longest, options.wire);
}

template <class Use>
void ReducingGradSink::for_each_partial(const Use& use) {
  for (int block = 0; block < layout_.num_blocks(); ++block) {
    const FlatRange kept = range(block);
    for (const FlatRange& part : layout_.tp_partial(block)) {
      const FlatRange own = intersect(part, kept);
      if (own.count > 0) use(shard(block).flat_range(own.first - kept.first, own.count));
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
  return sharded_ ? slots_[slot(block)].grads.flat.flat_range(0, layout_.numel(block))
                  : blocks_[static_cast<std::size_t>(block)];
}

Tensor ReducingGradSink::shard(int block) {
  const Tensor& kept = blocks_[static_cast<std::size_t>(block)];
  return sharded_ ? kept : kept.flat_range(range(block).first, range(block).count);
}

BlockGrads ReducingGradSink::grads(const Context& ctx, int block) {
  if (!sharded_) return {.flat = whole(block), .vectors = {}};
  const Slot& taken = slots_[slot(block)];
  taken.reduced.wait(ctx);  // of the block that had the slot before
  const Tensor& vectors = taken.grads.vectors;
  return {.flat = whole(block), .vectors = vectors ? vectors.flat_range(0, layout_.vector_numel(block)) : Tensor{}};
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

void ReducingGradSink::add_replicas(const Context& comm, const Tensor& part) {
  if (mesh_.zero_replicas().size() > 1) mesh_.zero_replicas().all_reduce(comm, part, ReduceOp::sum);
}

void ReducingGradSink::reduce_kept(const Context& comm, int block) {
  const Tensor sent = wire_ ? wire_.flat_range(0, layout_.numel(block)) : whole(block);
  if (wire_) ops::cast(comm, {.in = whole(block), .out = sent});
  const Tensor part = own_part(mesh_.zero(), sent, shard(block));
  if (mesh_.zero().size() > 1) mesh_.zero().reduce_scatter(comm, sent, part);
  add_replicas(comm, part);
  if (wire_) ops::cast(comm, {.in = part, .out = shard(block)});
}

void ReducingGradSink::reduce_sharded(const Context& comm, int block) {
  const Tensor sum = shard(block);
  if (direct(block)) round_vectors(comm, block);
  if (direct(block) || !wire_) return reduce_into(comm, whole(block), sum);
  const std::int64_t ranks = mesh_.zero().size(), piece = wire_.numel() / ranks;
  const Tensor parts = whole(block).reshape(ranks, sum.numel());
  for (std::int64_t first = 0; first < sum.numel(); first += piece) {
    const std::int64_t count = std::min(piece, sum.numel() - first);
    const Tensor sent = wire_.flat_range(0, ranks * count);
    ops::cast(comm, {.in = parts.col_range(first, count), .out = sent.reshape(ranks, count)});
    reduce_into(comm, sent, sum.flat_range(first, count));
  }
}

void ReducingGradSink::round_vectors(const Context& comm, int block) {
  const Slot& taken = slots_[slot(block)];
  for (const ParamId id : layout_.params(block))
    if (layout_.decl(id).dims == 1)
      ops::cast(comm,
                {.in = layout_.packed_view(taken.grads.vectors, id, id), .out = layout_.view(taken.grads.flat, id)});
}

void ReducingGradSink::reduce_into(const Context& comm, const Tensor& sent, const Tensor& sum) {
  mesh_.zero().reduce_scatter_into(comm, sent, sum, /*accumulate=*/!first_);
  if (!last_ || mesh_.zero_replicas().size() == 1) return;
  if (sent.dtype == sum.dtype) return add_replicas(comm, sum);
  const Tensor rounded = own_part(mesh_.zero(), sent, sum);
  ops::cast(comm, {.in = sum, .out = rounded});
  add_replicas(comm, rounded);
  ops::cast(comm, {.in = rounded, .out = sum});
}

}  // namespace trainer
