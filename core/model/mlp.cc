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

Mlp::Workspace Mlp::allocate_workspace(const ModelShape& shape, bool sequence_parallel, Arena& arena) {
  if (!sequence_parallel) return {};
  return {.dactivated = arena.take(MemoryClass::workspace, "mlp dactivated", shape.tokens, shape.mlp, shape.dtype)};
}

void Mlp::forward(const Pass& pass, const BlockParams& params, const Entering& h, const Saved& saved) const {
  if (fused()) return up_.forward_activated(pass, params, h, saved.up, activation_, saved.activated);
  up_.forward(pass, params, h, saved.up);
  recompute(pass, saved);
}

void Mlp::recompute(const Pass& pass, const Saved& saved) const {
  if (fused()) return;
  ops::activation_forward(pass.ctx, {.kind = activation_, .x = saved.up, .out = saved.activated});
}

void Mlp::backward(const Pass& pass, const BlockParams& params, const Entering& h, const Saved& saved,
                   const Workspace& work, const Entering& dout, const Leaving& dh) const {
  const Tensor dup = backward_down(pass, params, saved, work, dout);
  up_.backward_input(pass, params, dup, dh);
  up_.backward_weight(pass, params, dup, h.whole(pass.ctx));
}

Tensor Mlp::backward_down(const Pass& pass, const BlockParams& params, const Saved& saved, const Workspace& work,
                          const Entering& dout) const {
  const auto weight = [&] { down_.backward_weight(pass, params, dout.whole(pass.ctx), saved.activated); };
  // Where rows still arrive, the product that can begin without them comes first. Elsewhere the other one does, and
  // makes saved.activated free for the gradient of its values.
  const bool rows_arrive = static_cast<bool>(work.dactivated);
  const Tensor dactivated = rows_arrive ? work.dactivated : saved.activated;
  if (!rows_arrive) weight();
  if (fused())
    down_.backward_input(pass, params, dout, activation_, saved.up, dactivated);
  else
    down_.backward_input(pass, params, dout, dactivated);
  if (rows_arrive) weight();
  if (fused()) return dactivated;  // by now the gradient of `up`
  ops::activation_backward(pass.ctx, {.kind = activation_, .x = saved.up, .dout = dactivated, .dx = saved.up});
  return saved.up;
}

}  // namespace trainer
