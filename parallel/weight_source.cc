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

GatheringWeights::GatheringWeights(const ParamLayout& layout, const Mesh& mesh, bool tied, Dtype dtype,
                                   CommQueue& queue, Arena& arena)
    : layout_(layout), mesh_(mesh), queue_(queue), assignment_(layout, tied) {
  for (int block = 0; block < layout.num_blocks(); ++block)
    shards_.push_back(
        arena.take(MemoryClass::weights, "weights", 1, layout.shard(block, 0, mesh.zero().size()).count, dtype));
  const auto numel = [&](int block) { return layout.numel(block); };
  const auto type = [&](int /*block*/) { return dtype; };
  for (const Tensor& buffer : assignment_.take("gathered weights", numel, type, arena))
    slots_.push_back({.buffer = buffer, .gathered = Event(queue.device())});
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

/// The next pass begins with the first two blocks: they are fetched while the others are still updated.
void GatheringWeights::updated(const Context& ctx, int block) {
  Slot& slot = this->slot(block);
  if (slot.block == block) slot.block = kNone;
  if (block < 2) prefetch(ctx, block);
}

}  // namespace trainer
