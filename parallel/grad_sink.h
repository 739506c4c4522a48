// Where gradients go. The backward pass writes a block's gradients and says when they are ready; the sink adds them
// over the ranks.
#pragma once
#include <cstdint>
#include <vector>

#include "core/runtime/arena.h"
#include "core/runtime/param.h"
#include "core/runtime/streams.h"
#include "parallel/block_slots.h"
#include "parallel/mesh.h"

namespace trainer {

class GradSink {
 public:
  virtual ~GradSink() = default;
  /// `first`: gradients overwrite instead of adding. `last`: no micro-batch of this step follows.
  virtual void begin_micro_batch(bool first, bool last) = 0;
  /// Whether the buffer of grads() holds earlier micro-batches of this step, to be added to.
  virtual bool accumulate() const = 0;
  /// Gradients of a block, to be written or added to until ready(block).
  virtual BlockGrads grads(const Context& ctx, int block) = 0;
  /// All gradients of this block are there for this micro-batch. They are reduced beside the computation that follows.
  virtual void ready(const Context& ctx, int block) = 0;
  /// After the last micro-batch: what is queued on ctx.stream from now on finds all blocks reduced.
  virtual void finish(const Context& ctx) = 0;
  /// After finish(): this rank's part of the sum over all ranks (its ZeRO shard; the whole block under stage 0).
  virtual Tensor shard(int block) = 0;
};

/// A block's gradients of replicated KV heads are added over the ranks that have the same, then the block over dp:
/// reduce-scattered over the ZeRO group (all-reduced when that is one rank) and all-reduced over its replicas.
///   kept whole (ZeRO 0 and 1): on the last micro-batch.
///   sharded (ZeRO 2 and 3): on every micro-batch, over the ZeRO group; a block is whole in a slot only while its
///   backward pass writes it and until it is reduced. Replicas are added on the last one. Each matrix of a transformer
///   block is written once, so where T is the type of the wire its gradient is written in that: what travels is the
///   slot.
/// Ranges that are partial over tp are few and short in every block: what this rank keeps of them is added at the end,
/// all blocks at once.
class ReducingGradSink final : public GradSink {
 public:
  struct Options {
    Dtype accumulator = Dtype::f32;  // A: what gradients are added up in
    Dtype wire = Dtype::f32;         // element type between dp ranks: A, or bf16
    Dtype weights = Dtype::f32;      // T: what a matrix product can write besides the accumulator
    /// Elements of a sharded block that are copied to the wire at a time.
    std::int64_t wire_numel = std::int64_t{64} << 20;
    bool sharded = false;
    bool tied = false;  // the head adds to the embedding's gradient
  };
  ReducingGradSink(const ParamLayout& layout, const Mesh& mesh, const Options& options, CommQueue& queue, Arena& arena);
  void begin_micro_batch(bool first, bool last) override;
  bool accumulate() const override { return !sharded_ && !first_; }
  BlockGrads grads(const Context& ctx, int block) override;
  void ready(const Context& ctx, int block) override;
  void finish(const Context& ctx) override;
  Tensor shard(int block) override;

 private:
  struct Slot {
    BlockGrads grads;  // as long as the longest block
    Event reduced;
  };
  void take_slots(const Options& options, Arena& arena);
  void take_wire(const Options& options, Arena& arena);
  /// Whether a block's matrices are written in the type of the wire.
  bool direct(int block) const { return direct_ && assignment_.of_transformer_block(block); }
  Tensor whole(int block) const;
  FlatRange range(int block) const;
  std::size_t slot(int block) const { return static_cast<std::size_t>(assignment_.slot(block)); }
  void add_over_kv_replicas(const Context& ctx, int block);
  /// use(part) for every range of a shard that is partial over tp, [1, n] A.
  template <class Use>
  void for_each_partial(const Use& use);
  void add_over_tp(const Context& ctx);
  void reduce_kept(const Context& comm, int block);
  void reduce_sharded(const Context& comm, int block);
  /// sum (+)= this rank's part of what all send, and of its replicas.
  void reduce_into(const Context& comm, const Tensor& sent, const Tensor& sum);
  /// Completes the slot of a direct block with its vectors.
  void round_vectors(const Context& comm, int block);
  void add_replicas(const Context& comm, const Tensor& part);

  const ParamLayout& layout_;
  const Mesh& mesh_;
  CommQueue& queue_;
  BlockSlots assignment_;
  bool sharded_;
  bool direct_;
  std::vector<Tensor> blocks_;  // whole ones, or this rank's shards
  std::vector<Slot> slots_;     // sharded only
  Tensor wire_;     // [1, longest block, or piece of it]: copies in the type of the wire; absent where it is A
  Tensor partial_;  // [1, all that is partial over tp]; absent when nothing is
  Event reduced_;
  bool first_ = true;
  bool last_ = false;
};

}  // namespace trainer
