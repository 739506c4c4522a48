// The MLP of a block: up (and gate), activation function, down. Column-parallel, then row-parallel.
#pragma once
#include "core/model/linear.h"

namespace trainer {

class Mlp {
 public:
  Mlp(const Config& config, int block, const std::string& name, ParamList& params);

  struct Saved {
    Tensor up;         // [N, F], with swiglu gate and up [N, 2 F]
    Tensor activated;  // [N, F]; cheap to compute again from `up`, unless it is made in the matrix product
  };
  struct Workspace {
    Tensor dactivated;  // [N, F]; sequence parallel only
  };
  static Workspace allocate_workspace(const ModelShape& shape, bool sequence_parallel, Arena& arena);
  /// Room for what selective recompute drops, shared by all layers; absent when it drops nothing.
  Tensor allocate_cheap(const ModelShape& shape, Arena& arena) const;
  /// `cheap`: that room; absent: Saved gets its own.
  Saved allocate(const ModelShape& shape, Arena& arena, const Tensor& cheap) const;

  /// Fills `saved`: everything before the last matrix product, down(). h [N, C]
  void forward(const Pass& pass, const BlockParams& params, const Entering& h, const Saved& saved) const;
  /// Computes saved.activated again, with the same bits, where it may have been dropped.
  void recompute(const Pass& pass, const Saved& saved) const;
  /// dout [N, C], the gradient of what down() made -> dh, which starts to leave. h is needed whole, towards the end.
  /// Overwrites `saved`.
  void backward(const Pass& pass, const BlockParams& params, const Entering& h, const Saved& saved,
                const Workspace& work, const Entering& dout, const Leaving& dh) const;

  const Linear& down() const { return down_; }

 private:
  /// The tanh form of GELU, forward and backward, rides in the matrix products of up and down. It is then that of the
  /// product's unrounded sum, which cannot be had again from `up`: selective recompute keeps it.
  bool fused() const { return activation_ == Activation::gelu_tanh; }

  /// The backward pass of down() and the activation function: gradient of `up` [N, F or 2 F], in one of the tensors of
  /// `saved` and `work`.
  Tensor backward_down(const Pass& pass, const BlockParams& params, const Saved& saved, const Workspace& work,
                       const Entering& dout) const;

  Activation activation_;
  Linear up_, down_;
};

}  // namespace trainer
