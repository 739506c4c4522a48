// One transformer block: the unit of weight gathering, gradient reduction and recompute.
//   one after the other:  x2 = x + attention(norm1(x));  y = x2 + mlp(norm2(x2))
//   parallel residual:    y = x + attention(norm1(x)) + mlp(norm2(x))
#pragma once
#include "core/model/attention.h"
#include "core/model/mlp.h"
#include "core/model/norm.h"

namespace trainer {

class Block {
 public:
  /// Declares the parameters of `model.layers.<layer>` in block layer + 1.
  Block(const Config& config, int layer, ParamList& params);

  /// What the backward pass needs of a forward pass. With full recompute only norm1.sum belongs to the layer, the rest
  /// is one slot that all layers share; with selective recompute the cheap tensors are shared.
  struct Saved {
    Norm::Saved norm1, norm2;
    Tensor h1, h2;  // [local N, C]: outputs of the norms; cheap
    Attention::Saved attention;
    Mlp::Saved mlp;
  };
  /// Cheap tensors of a block, shared by all layers under recompute.
  struct Cheap {
    Tensor h1, h2, normed, activated;
  };
  /// Buffers of one block at a time, shared by all layers.
  struct Workspace {
    Leaving leaving;   // sums over tp ranks
    Leaving leaving2;  // parallel residual only: a second sum while the first is kept
    Tensor full;       // [N, C]: gathered inputs; sequence parallel only
    Tensor dfull;      // [N, C]: gathered gradients; sequence parallel only
    Tensor dbranch;    // [local N, C]: gradient before dropout; hidden_dropout only
    Attention::Workspace attention;
    Mlp::Workspace mlp;
  };
  Cheap allocate_cheap(const ModelShape& shape, Arena& arena) const;
  /// `cheap`: where the cheap tensors of all layers are; null: the block has its own.
  Saved allocate(const ModelShape& shape, Arena& arena, const Cheap* cheap) const;
  Workspace allocate_workspace(const Config& config, const ModelShape& shape, Arena& arena) const;

  /// `next_sum`: where the norm behind this block keeps what it normalises. The returned stream lies there, or in
  /// `saved` and `work`.
  ResidualStream forward(const Pass& pass, const BlockParams& params, const ModelShape& shape, const RopeTable& rope,
                         const ResidualStream& in, const Saved& saved, const Workspace& work,
                         const Tensor& next_sum) const;
  /// Fills the cheap tensors of `saved` again from the others.
  void recompute_cheap(const Pass& pass, const BlockParams& params, const ModelShape& shape, const RopeTable& rope,
                       const Saved& saved) const;
  /// Fills all of `saved` again from saved.norm1.sum.
  void recompute_all(const Pass& pass, const BlockParams& params, const ModelShape& shape, const RopeTable& rope,
                     const Saved& saved, const Workspace& work) const;
  /// d [local N, C]: gradient of the block's output, overwritten with that of its input (residual and branch alike).
  void backward(const Pass& pass, const BlockParams& params, const ModelShape& shape, const RopeTable& rope,
                const Saved& saved, const Workspace& work, const Tensor& d) const;

 private:
  /// Everything before the MLP; returns its input [N, C].
  Entering forward_until_mlp(const Pass& pass, const BlockParams& params, const ModelShape& shape,
                             const RopeTable& rope, const ResidualStream& in, const Saved& saved,
                             const Workspace& work) const;
  /// What is leaving: its sum over tp ranks, then the biases that are still missing, and dropout: the branch that joins
  /// the residual stream.
  Tensor finish_branch(const Pass& pass, const BlockParams& params, const Workspace& work,
                       std::initializer_list<const Linear*> layers, const DropoutKey& dropout) const;
  /// Whether the matrix product at the end of a branch adds the residual stream: nothing stands between the two.
  bool product_adds_residual(const Pass& pass, const DropoutKey& dropout) const {
    return !parallel_residual_ && pass.tp.size() == 1 && dropout.p == 0.0;
  }
  DropoutKey branch_dropout(const Pass& pass, DropoutSite site) const {
    return dropout_at(pass, hidden_dropout_, dropout_site(block_, site));
  }
  /// Gradient of the branch: through dropout, then on its way to all tp ranks.
  Entering begin_branch_backward(const Pass& pass, const Workspace& work, const DropoutKey& dropout,
                                 const Tensor& d) const;

  int block_;
  bool parallel_residual_;
  double hidden_dropout_;
  Norm norm1_, norm2_;
  Attention attention_;
  Mlp mlp_;
};

}  // namespace trainer
