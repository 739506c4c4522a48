// Final norm, vocabulary-parallel logits and cross-entropy. Block num_layers + 1. The logits exist for a chunk of
// tokens at a time: a chunk's gradient takes their place, so that a training pass runs forward and backward of the head
// in one go.
#pragma once
#include "core/model/norm.h"

namespace trainer {

class LmHead {
 public:
  LmHead(const Config& config, int tp_size, ParamList& params);

  bool tied() const { return weight_ == kNoParam; }

  struct Workspace {
    Norm::Saved norm;
    Tensor h;               // [local N, C]
    Tensor full;            // [N, C]: gathered h; sequence parallel only
    Tensor dfull;           // [N, C]: a part of the sum over tp ranks
    Tensor dlocal;          // [local N, C]; sequence parallel only
    Tensor logits;          // [chunk, V]
    Tensor stats;           // [chunk, 3] A; this and the next with more than one tp rank only
    Tensor gathered_stats;  // [tp x chunk, 3] A
  };
  Workspace allocate_workspace(const Config& config, const ModelShape& shape, int tp_size, Arena& arena) const;

  /// The weight of the head and its gradient: this block's own, or the embedding's when tied.
  struct Weight {
    Tensor w;   // [V, C] local rows
    Tensor dw;  // [V, C] A
    bool accumulate = true;
  };
  Weight own_weight(const BlockParams& params) const {
    return {params.w(weight_), params.g(weight_), params.accumulate};
  }

  /// Adds loss, z-loss and number of targets to sums [1, 3] f64.
  void evaluate(const Pass& pass, const BlockParams& params, const ModelShape& shape, const Weight& weight,
                const ResidualStream& in, const Workspace& work, const Tensor& sums) const;
  /// The same with backward: weight gradients, and d [local N, C], the gradient of the stream. `grad_scale`: 1 /
  /// (global batch x T); the loss scale is read from `state`.
  void train(const Pass& pass, const BlockParams& params, const ModelShape& shape, const Weight& weight,
             const ResidualStream& in, const Workspace& work, const Tensor& sums, double grad_scale,
             const UpdateState* state, const Tensor& d) const;
  /// The logits of all tokens, this rank's columns: [N, V].
  void logits(const Pass& pass, const BlockParams& params, const Weight& weight, const ResidualStream& in,
              const Workspace& work, const Tensor& out) const;

 private:
  struct LossScaling {
    double grad_scale = 1.0;
    const UpdateState* state = nullptr;
    bool backward = false;
  };
  Tensor normalise(const Pass& pass, const BlockParams& params, const ResidualStream& in, const Workspace& work) const;
  /// Logits of rows [first, first + count) of h, their losses, and the gradient in their place.
  Tensor chunk_loss(const Pass& pass, const ModelShape& shape, const Weight& weight, const Tensor& h,
                    std::int64_t first, std::int64_t count, const Workspace& work, const Tensor& sums,
                    const LossScaling& scaling) const;

  double z_loss_;
  Norm norm_;
  ParamId weight_ = kNoParam;
};

}  // namespace trainer
