// Where gradients go. The backward pass writes a block's gradients and says when they are ready; the sink adds them
// over the ranks.
#pragma once
#include <vector>

#include "core/runtime/arena.h"
#include "core/runtime/param.h"
#include "parallel/mesh.h"

namespace trainer {

class GradSink {
 public:
  virtual ~GradSink() = default;
  /// `first`: gradients overwrite instead of adding. `last`: after this micro-batch the blocks are reduced as they
  /// become ready.
  virtual void begin_micro_batch(bool first, bool last) = 0;
  /// False on the first micro-batch of a step.
  virtual bool accumulate() const = 0;
  /// Flat gradients [1, numel(block)] A of a block, to be written or added to.
  virtual Tensor grads(int block) = 0;
  /// All gradients of this block are there for this micro-batch.
  virtual void ready(const Context& ctx, int block) = 0;
  /// After the last micro-batch: this rank's part of the sum over all ranks (its ZeRO shard; the whole block under
  /// stage 0).
  virtual Tensor shard(int block) = 0;
};

/// ZeRO 0 and 1: whole gradients on every rank; on the last micro-batch a block's partial ranges are added over tp (and
/// over ranks with the same KV heads), then the block over dp: reduce-scattered over the ZeRO group (all-reduced when
/// that is one rank) and all-reduced over its replicas. `wire` is the element type between dp ranks: A, or bf16.
class ReducingGradSink final : public GradSink {
 public:
  ReducingGradSink(const ParamLayout& layout, const Mesh& mesh, Dtype accumulator, Dtype wire, Arena& arena);
  void begin_micro_batch(bool first, bool last) override;
  bool accumulate() const override { return accumulate_; }
  Tensor grads(int block) override;
  void ready(const Context& ctx, int block) override;
  Tensor shard(int block) override;

 private:
  void reduce_over_dp(const Context& ctx, int block);

  const ParamLayout& layout_;
  const Mesh& mesh_;
  std::vector<Tensor> blocks_;
  Tensor wire_;  // [1, longest block] of the wire type; absent when that is A
  bool accumulate_ = false;
  bool last_ = false;
};

}  // namespace trainer
