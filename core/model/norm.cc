#include "core/model/norm.h"

namespace trainer {

Norm::Norm(const Config& config, int block, const std::string& name, ParamList& params)
    : kind_(config.model.norm), eps_(config.model.norm_eps) {
  ParamDecl decl;
  decl.block = block;
  decl.dims = 1;
  decl.rows = config.model.hidden_size;
  // Under sequence parallel each rank normalises its own tokens only, so its gradient is a part of the sum.
  decl.arrival = config.parallelism.sequence_parallel ? GradArrival::partial : GradArrival::whole;
  decl.decay = config.optimizer.decay_norms_and_biases;
  decl.name = name + ".weight";
  decl.init = ParamInit::ones;
  weight_ = params.add(decl);
  if (kind_ == NormKind::layernorm) {
    decl.name = name + ".bias";
    decl.init = ParamInit::zeros;
    bias_ = params.add(decl);
  }
}

Tensor Norm::allocate_sum(const ModelShape& shape, Arena& arena) {
  return arena.take(MemoryClass::activations, "residual stream", shape.local_tokens, shape.hidden, shape.dtype);
}

Norm::Saved Norm::allocate(const ModelShape& shape, Arena& arena, const Tensor& sum) const {
  Saved saved;
  saved.sum = sum ? sum : allocate_sum(shape, arena);
  if (kind_ == NormKind::layernorm)
    saved.mean = arena.take(MemoryClass::activations, "norm statistics", 1, shape.local_tokens, shape.accumulator);
  saved.rstd = arena.take(MemoryClass::activations, "norm statistics", 1, shape.local_tokens, shape.accumulator);
  return saved;
}

void Norm::forward(const Pass& pass, const BlockParams& params, const ResidualStream& in, const Saved& saved,
                   const Tensor& out) const {
  ops::add_norm_forward(pass.ctx, {.kind = kind_,
                                   .eps = eps_,
                                   .x = in.residual,
                                   .branch = in.branch,
                                   .weight = params.w(weight_),
                                   .bias = params.w(bias_),
                                   .sum = saved.sum,
                                   .out = out,
                                   .mean = saved.mean,
                                   .rstd = saved.rstd});
}

void Norm::recompute(const Pass& pass, const BlockParams& params, const Saved& saved, const Tensor& out) const {
  forward(pass, params, {.residual = saved.sum, .branch = {}}, saved, out);
}

void Norm::backward(const Pass& pass, const BlockParams& params, const Saved& saved, const Tensor& dout,
                    const Tensor& dresidual, const Tensor& dx) const {
  ops::norm_backward(pass.ctx, {.kind = kind_,
                                .dout = dout,
                                .sum = saved.sum,
                                .weight = params.w(weight_),
                                .mean = saved.mean,
                                .rstd = saved.rstd,
                                .dresidual = dresidual,
                                .dx = dx,
                                .dweight = params.g(weight_),
                                .dbias = params.g(bias_),
                                .accumulate = params.accumulate});
}

}  // namespace trainer
