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
  /// Room for what selective recompute drops, shared by all layers; absent when it drops nothing.
  Tensor allocate_cheap(const ModelShape& shape, Arena& arena) const;
  /// `cheap`: that room; absent: Saved gets its own.
  Saved allocate(const ModelShape& shape, Arena& arena, const Tensor& cheap) const;

  /// out = addend + MLP(h) before the sum over tp ranks. h, out, addend [N, C]; addend absent, or out as well
  void forward(const Pass& pass, const BlockParams& params, const Tensor& h, const Saved& saved, const Tensor& addend,
               const Tensor& out) const;
  /// Fills `saved` only: what the backward pass needs of forward().
  void forward_hidden(const Pass& pass, const BlockParams& params, const Tensor& h, const Saved& saved) const;
  /// Computes saved.activated again, with the same bits, where it may have been dropped.
  void recompute(const Pass& pass, const Saved& saved) const;
  /// dpartial [N, C] -> dh [N, C], a part of the sum over tp ranks. Overwrites `saved`.
  void backward(const Pass& pass, const BlockParams& params, const Tensor& h, const Saved& saved,
                const Tensor& dpartial, const Tensor& dh) const;

  const Linear& down() const { return down_; }

 private:
  /// The tanh form of GELU, forward and backward, rides in the matrix products of up and down. It is then that of the
  /// product's unrounded sum, which cannot be had again from `up`: selective recompute keeps it.
  bool fused() const { return activation_ == Activation::gelu_tanh; }

  /// dpartial -> gradient of `up` [N, F or 2 F], in one of the tensors of `saved`.
  Tensor backward_activation(const Pass& pass, const BlockParams& params, const Saved& saved,
                             const Tensor& dpartial) const;

  Activation activation_;
  Linear up_, down_;
};

}  // namespace trainer
