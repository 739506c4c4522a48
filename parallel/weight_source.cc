#include "parallel/weight_source.h"

namespace trainer {

ResidentWeights::ResidentWeights(const ParamLayout& layout, const Mesh& mesh, Dtype dtype, Arena& arena)
    : layout_(layout), mesh_(mesh) {
  for (int block = 0; block < layout.num_blocks(); ++block)
    blocks_.push_back(arena.take(MemoryClass::weights, "weights", 1, layout.numel(block), dtype));
}

Tensor ResidentWeights::acquire(const Context& /*ctx*/, int block) {
  return blocks_[static_cast<std::size_t>(block)];
}

void ResidentWeights::release(const Context& /*ctx*/, int /*block*/) {}

Tensor ResidentWeights::shard(int block) {
  const Communicator& zero = mesh_.zero();
  const FlatRange range = layout_.shard(block, zero.rank(), zero.size());
  return blocks_[static_cast<std::size_t>(block)].flat_range(range.first, range.count);
}

void ResidentWeights::updated(const Context& ctx, int block) {
  if (mesh_.zero().size() > 1) mesh_.zero().all_gather(ctx, shard(block), blocks_[static_cast<std::size_t>(block)]);
}

}  // namespace trainer
