// Where a block gets its weights from: kept whole on every rank, or gathered before use and dropped afterwards.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/runtime/arena.h"
#include "core/runtime/param.h"
#include "core/runtime/streams.h"
#include "parallel/block_slots.h"
#include "parallel/mesh.h"

namespace trainer {

class WeightSource {
 public:
  virtual ~WeightSource() = default;
  /// The flat weights [1, numel(block)] T of a block, valid until release().
  virtual Tensor acquire(const Context& ctx, int block) = 0;
  virtual void release(const Context& ctx, int block) = 0;
  /// The block will be acquired soon: where it must be fetched, that begins while others are computed.
  virtual void prefetch(const Context& /*ctx*/, int /*block*/) {}
  /// This rank's part (its ZeRO shard; the whole block under stage 0), which the optimizer writes.
  virtual Tensor shard(int block) = 0;
  /// The optimizer has written shard(block) on every rank: make the block whole again where it is kept whole.
  virtual void updated(const Context& ctx, int block) = 0;
};

/// Every rank keeps the weights of every block (ZeRO 0 to 2). After an update the shards are gathered over the ZeRO
/// group, beside the computation; acquire() waits for that.
class ResidentWeights final : public WeightSource {
 public:
  ResidentWeights(const ParamLayout& layout, const Mesh& mesh, Dtype dtype, CommQueue& queue, Arena& arena);
  Tensor acquire(const Context& ctx, int block) override;
  void release(const Context& ctx, int block) override;
  Tensor shard(int block) override;
  void updated(const Context& ctx, int block) override;

 private:
  const ParamLayout& layout_;
  const Mesh& mesh_;
  CommQueue& queue_;
  std::vector<Tensor> blocks_;
  std::vector<Event> gathered_;  // one a block, in the queue of communication
};

/// Every rank keeps its shards alone (ZeRO 3). A block is gathered over the ZeRO group into a slot, and stays there
/// until another one needs the slot or an update has made it old. A resident block has a slot of its own, of which its
/// shard is a part.
class GatheringWeights final : public WeightSource {
 public:
  struct Options {
    Dtype dtype = Dtype::f32;
    bool tied = false;  // the head uses the embedding's weight
    /// Of the transformer blocks, at even distances, which spreads the gathers of the others over the pass.
    std::int64_t resident_layers = 0;
  };
  GatheringWeights(const ParamLayout& layout, const Mesh& mesh, const Options& options, CommQueue& queue, Arena& arena);
  Tensor acquire(const Context& ctx, int block) override;
  void release(const Context& ctx, int block) override;
  void prefetch(const Context& ctx, int block) override;
  Tensor shard(int block) override;
  void updated(const Context& ctx, int block) override;

 private:
  struct Slot {
    Tensor buffer;  // [1, longest of its blocks]
    Event gathered;
    int block = kNone;  // whose weights are there or on the way
    bool acquired = false;
  };
  static constexpr int kNone = -1;
  Slot& slot(int block) { return slots_[slot_of_[static_cast<std::size_t>(block)]]; }
  bool resident(int block) const { return slot_of_[static_cast<std::size_t>(block)] >= BlockSlots::kCount; }

  const ParamLayout& layout_;
  const Mesh& mesh_;
  CommQueue& queue_;
  std::vector<Tensor> shards_;
  std::vector<Slot> slots_;           // shared ones, then one for each resident block
  std::vector<std::size_t> slot_of_;  // of each block
};

}  // namespace trainer
