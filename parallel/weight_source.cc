#include "parallel/weight_source.h"

namespace trainer {

ResidentWeights::ResidentWeights(const ParamLayout& layout, const Mesh& mesh, Dtype dtype, CommQueue& queue,
                                 Arena& arena)
    : layout_(layout), mesh_(mesh), queue_(queue) {
  for (int block = 0; block < layout.num_blocks(); ++block) {
    blocks_.push_back(arena.take(MemoryClass::weights, "weights", 1, layout.numel(block), dtype));
    gathered_.emplace_back(queue.device());
  }
}

Tensor ResidentWeights::acquire(const Context& ctx, int block) {
  if (mesh_.zero().size() > 1) gathered_[static_cast<std::size_t>(block)].wait(ctx);
  return blocks_[static_cast<std::size_t>(block)];
}

void ResidentWeights::release(const Context& /*ctx*/, int /*block*/) {}

Tensor ResidentWeights::shard(int block) {
  const Communicator& zero = mesh_.zero();
  const FlatRange range = layout_.shard(block, zero.rank(), zero.size());
  return blocks_[static_cast<std::size_t>(block)].flat_range(range.first, range.count);
}

void ResidentWeights::updated(const Context& ctx, int block) {
  if (mesh_.zero().size() == 1) return;
  const Context& comm = queue_.after(ctx);
  mesh_.zero().all_gather(comm, shard(block), blocks_[static_cast<std::size_t>(block)]);
  gathered_[static_cast<std::size_t>(block)].record(comm);
}

GatheringWeights::GatheringWeights(const ParamLayout& layout, const Mesh& mesh, const Options& options,
                                   CommQueue& queue, Arena& arena)
    : layout_(layout), mesh_(mesh), queue_(queue) {
  const BlockSlots assignment(layout, options.tied);
  const std::int64_t layers = assignment.num_transformer_blocks();
  const auto is_resident = [&](int block) {
    return assignment.of_transformer_block(block) &&
           block * options.resident_layers / layers > (block - 1) * options.resident_layers / layers;
  };
  const auto numel = [&](int block) { return is_resident(block) ? 0 : layout.numel(block); };
  const auto type = [&](int /*block*/) { return options.dtype; };
  for (const Tensor& buffer : assignment.take("gathered weights", numel, type, arena))
    slots_.push_back({.buffer = buffer, .gathered = Event(queue.device())});
  for (int block = 0; block < layout.num_blocks(); ++block) {
    const FlatRange shard = layout.shard(block, mesh.zero().rank(), mesh.zero().size());
    if (!is_resident(block)) {
      shards_.push_back(arena.take(MemoryClass::weights, "weights", 1, shard.count, options.dtype));
      slot_of_.push_back(static_cast<std::size_t>(assignment.slot(block)));
      continue;
    }
    const Tensor whole = arena.take(MemoryClass::weights, "resident weights", 1, layout.numel(block), options.dtype);
    shards_.push_back(whole.flat_range(shard.first, shard.count));
    slot_of_.push_back(slots_.size());
    slots_.push_back({.buffer = whole, .gathered = Event(queue.device())});
  }
}

void GatheringWeights::prefetch(const Context& ctx, int block) {
  Slot& slot = this->slot(block);
  if (slot.block == block) return;
  TRAINER_CHECK(!slot.acquired, "block {} is fetched over block {}, which is in use", block, slot.block);
  // The queue of computation has passed the last use of the slot's former block and the last update of the shard.
  const Context& comm = queue_.after(ctx);
  mesh_.zero().all_gather(comm, shard(block), slot.buffer.flat_range(0, layout_.numel(block)));
  slot.gathered.record(comm);
  slot.block = block;
}

Tensor GatheringWeights::acquire(const Context& ctx, int block) {
  prefetch(ctx, block);
  Slot& slot = this->slot(block);
  slot.gathered.wait(ctx);
  slot.acquired = true;
  return slot.buffer.flat_range(0, layout_.numel(block));
}

void GatheringWeights::release(const Context& /*ctx*/, int block) {
  slot(block).acquired = false;
}

Tensor GatheringWeights::shard(int block) {
  return shards_[static_cast<std::size_t>(block)];
}

/// The next pass begins with the first two blocks: they are fetched while the others are still updated, as are those
/// that are to stay.
void GatheringWeights::updated(const Context& ctx, int block) {
  Slot& slot = this->slot(block);
  if (slot.block == block) slot.block = kNone;
  if (block < 2 || resident(block)) prefetch(ctx, block);
}

}  // namespace trainer
