// The decoder: embedding, blocks, head. Knows the order of things; each layer knows its own mathematics.
#pragma once
#include <memory>
#include <vector>

#include "core/model/block.h"
#include "core/model/embedding.h"
#include "core/model/lm_head.h"
#include "parallel/grad_sink.h"
#include "parallel/weight_source.h"

namespace trainer {

class Transformer {
 public:
  /// Declares all parameters for a place in the mesh. `config` is resolved (core/config/resolve.h).
  Transformer(const Config& config, int tp_rank, int tp_size, int zero_size);

  const ParamLayout& layout() const { return *layout_; }
  const ModelShape& shape() const { return shape_; }

  /// Lays out activations and workspace. Called over a measuring arena, then over the real one.
  void allocate(Arena& arena);
  /// Fills tables that live in the workspace; once, after the real allocate().
  void fill_tables(const Context& ctx);

  /// One micro-batch: forward and backward. Adds to sums [1, 3] f64 (loss, z-loss, targets); gradients go to `sink`,
  /// block by block.
  void train(const Pass& pass, WeightSource& weights, GradSink& sink, const Tensor& sums, double grad_scale,
             const UpdateState* state) const;
  /// Loss only. Touches no training state.
  void evaluate(const Pass& pass, WeightSource& weights, const Tensor& sums) const;
  /// Logits of all tokens, this rank's columns of the vocabulary: out [N, V].
  void logits(const Pass& pass, WeightSource& weights, const Tensor& out) const;

 private:
  BlockParams acquire(const Pass& pass, WeightSource& weights, int block) const;
  BlockParams acquire(const Pass& pass, WeightSource& weights, GradSink& sink, int block) const;
  /// For a backward pass that needs no weights.
  BlockParams acquire_grads(const Pass& pass, GradSink& sink, int block) const;
  /// Where the norm behind a block keeps its input.
  const Tensor& sum_behind(std::size_t layer, bool one_slot) const;
  /// Embedding and blocks. Layers save into their own slots, or with `one_slot` all into the first.
  ResidualStream forward(const Pass& pass, WeightSource& weights, bool one_slot) const;
  void recompute(const Pass& pass, const BlockParams& params, int layer) const;
  int head_block() const { return static_cast<int>(blocks_.size()) + 1; }
  /// The head's weight while block 0 (tied) or the head's own block is acquired.
  template <class Use>
  void with_head(const Pass& pass, WeightSource& weights, GradSink* sink, const Use& use) const;

  Config config_;
  ModelShape shape_;
  int tp_size_;
  ParamList params_;
  Embedding embedding_;
  std::vector<Block> blocks_;
  LmHead head_;
  std::unique_ptr<ParamLayout> layout_;

  RopeTable rope_;
  Embedding::Workspace embedding_work_;
  Block::Workspace block_work_;
  LmHead::Workspace head_work_;
  std::vector<Block::Saved> saved_;
  Tensor d_;  // [local N, C]: gradient of the residual stream, handed from block to block
};

}  // namespace trainer
