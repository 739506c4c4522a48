// LayerNorm or RMSNorm on the residual stream, fused with the addition before it.
#pragma once
#include "core/model/pass.h"

namespace trainer {

class Norm {
 public:
  /// Declares `name`.weight (and .bias for layernorm) in `block`.
  Norm(const Config& config, int block, const std::string& name, ParamList& params);

  struct Saved {
    Tensor sum;   // [local N, C] T: what was normalised
    Tensor mean;  // [1, local N] A; layernorm only
    Tensor rstd;  // [1, local N] A
  };
  static Tensor allocate_sum(const ModelShape& shape, Arena& arena);
  /// `sum`: where the sum lies already (another norm of the same tensor); absent: Saved gets its own.
  Saved allocate(const ModelShape& shape, Arena& arena, const Tensor& sum = {}) const;

  /// saved.sum = in.residual + in.branch; out = norm(saved.sum).
  void forward(const Pass& pass, const BlockParams& params, const ResidualStream& in, const Saved& saved,
               const Tensor& out) const;
  /// out = norm(saved.sum) again, with the same bits.
  void recompute(const Pass& pass, const BlockParams& params, const Saved& saved, const Tensor& out) const;
  /// dx = dresidual + gradient through the norm. dx may be dout or dresidual.
  void backward(const Pass& pass, const BlockParams& params, const Saved& saved, const Tensor& dout,
                const Tensor& dresidual, const Tensor& dx) const;

 private:
  NormKind kind_;
  double eps_;
  ParamId weight_, bias_ = kNoParam;
};

}  // namespace trainer
