#include "core/model/mlp.h"

namespace trainer {
namespace {

std::vector<Linear::Part> up_parts(const Config& config, const std::string& name) {
  const std::int64_t width = config.model.intermediate_size;
  std::vector<Linear::Part> parts;
  if (config.model.activation == Activation::swiglu) parts.push_back({name + ".gate_proj", width, ParamSplit::rows});
  parts.push_back({name + ".up_proj", width, ParamSplit::rows});
  return parts;
}

Linear::Options options(const Config& config, int block, std::int64_t in_features, double std) {
  return {.block = block,
          .in_features = in_features,
          .bias = config.model.mlp_bias,
          .init_std = std,
          .decay_bias = config.optimizer.decay_norms_and_biases};
}

}  // namespace

Mlp::Mlp(const Config& config, int block, const std::string& name, ParamList& params)
    : activation_(config.model.activation),
      up_(options(config, block, config.model.hidden_size, config.model.initializer_range), up_parts(config, name),
          params),
      down_(options(config, block, config.model.intermediate_size, residual_init_std(config.model)),
            {{name + ".down_proj", config.model.hidden_size, ParamSplit::columns}}, params) {}

Tensor Mlp::allocate_cheap(const ModelShape& shape, Arena& arena) const {
  if (fused()) return {};
  return arena.take(MemoryClass::activations, "mlp activated", shape.tokens, shape.mlp, shape.dtype);
}

Mlp::Saved Mlp::allocate(const ModelShape& shape, Arena& arena, const Tensor& cheap) const {
  const std::int64_t up_cols = activation_ == Activation::swiglu ? 2 * shape.mlp : shape.mlp;
  Saved saved;
  saved.up = arena.take(MemoryClass::activations, "mlp up", shape.tokens, up_cols, shape.dtype);
  saved.activated =
      cheap ? cheap : arena.take(MemoryClass::activations, "mlp activated", shape.tokens, shape.mlp, shape.dtype);
  return saved;
}

void Mlp::forward(const Pass& pass, const BlockParams& params, const Tensor& h, const Saved& saved,
                  const Tensor& addend, const Tensor& out) const {
  forward_hidden(pass, params, h, saved);
  down_.forward(pass, params, saved.activated, out, addend);
}

void Mlp::forward_hidden(const Pass& pass, const BlockParams& params, const Tensor& h, const Saved& saved) const {
  if (fused()) return up_.forward_activated(pass, params, h, saved.up, activation_, saved.activated);
  up_.forward(pass, params, h, saved.up);
  recompute(pass, saved);
}

void Mlp::recompute(const Pass& pass, const Saved& saved) const {
  if (fused()) return;
  ops::activation_forward(pass.ctx, {.kind = activation_, .x = saved.up, .out = saved.activated});
}

void Mlp::backward(const Pass& pass, const BlockParams& params, const Tensor& h, const Saved& saved,
                   const Tensor& dpartial, const Tensor& dh) const {
  down_.backward_weight(pass, params, dpartial, saved.activated);
  const Tensor dup = backward_activation(pass, params, saved, dpartial);
  up_.backward_weight(pass, params, dup, h);
  up_.backward_input(pass, params, dup, dh);
}

Tensor Mlp::backward_activation(const Pass& pass, const BlockParams& params, const Saved& saved,
                                const Tensor& dpartial) const {
  const Tensor dactivated = saved.activated;  // its last use is over
  if (fused()) {
    down_.backward_input(pass, params, dpartial, activation_, saved.up, dactivated);
    return dactivated;  // by now the gradient of `up`
  }
  down_.backward_input(pass, params, dpartial, dactivated);
  ops::activation_backward(pass.ctx, {.kind = activation_, .x = saved.up, .dout = dactivated, .dx = saved.up});
  return saved.up;
}

}  // namespace trainer
