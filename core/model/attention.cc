#include "core/model/attention.h"

#include <cmath>

namespace trainer {
namespace {

Linear::Options projection(const Config& config, int block, std::int64_t in_features, bool bias, double std) {
  return {.block = block,
          .in_features = in_features,
          .bias = bias,
          .init_std = std,
          .decay_bias = config.optimizer.decay_norms_and_biases};
}

ParamId declare_head_norm(const Config& config, int block, const std::string& name, ParamList& params) {
  ParamDecl decl;
  decl.name = name;
  decl.block = block;
  decl.dims = 1;
  decl.rows = config.model.head_dim;
  decl.arrival = GradArrival::partial;  // each tp rank sees its own heads only
  decl.init = ParamInit::ones;
  decl.decay = config.optimizer.decay_norms_and_biases;
  return params.add(decl);
}

}  // namespace

Attention::Attention(const Config& config, int block, const std::string& name, ParamList& params)
    : qk_norm_(config.model.qk_norm),
      norm_eps_(config.model.norm_eps),
      window_(config.model.sliding_window),
      total_heads_(config.model.num_attention_heads),
      dropout_(config.model.attention_dropout),
      dropout_site_(dropout_site(block, DropoutSite::attention_probabilities)),
      q_norm_(qk_norm_ ? declare_head_norm(config, block, name + ".q_norm.weight", params) : kNoParam),
      k_norm_(qk_norm_ ? declare_head_norm(config, block, name + ".k_norm.weight", params) : kNoParam),
      qkv_(projection(config, block, config.model.hidden_size, config.model.attention_bias,
                      config.model.initializer_range),
           {{name + ".q_proj", config.model.num_attention_heads * config.model.head_dim, ParamSplit::rows},
            {name + ".k_proj", config.model.num_key_value_heads * config.model.head_dim, ParamSplit::kv_rows},
            {name + ".v_proj", config.model.num_key_value_heads * config.model.head_dim, ParamSplit::kv_rows}},
           params),
      out_(projection(config, block, config.model.num_attention_heads * config.model.head_dim,
                      config.model.attention_out_bias, residual_init_std(config.model)),
           {{name + ".o_proj", config.model.hidden_size, ParamSplit::columns}}, params) {}

Tensor Attention::allocate_cheap(const ModelShape& shape, Arena& arena) const {
  if (!qk_norm_) return {};
  return arena.take(MemoryClass::activations, "normed q and k", shape.tokens, shape.q_cols() + shape.kv_cols(),
                    shape.dtype);
}

Attention::Saved Attention::allocate(const ModelShape& shape, Arena& arena, const Tensor& cheap) const {
  constexpr MemoryClass kClass = MemoryClass::activations;
  Saved saved;
  saved.qkv = arena.take(kClass, "qkv", shape.tokens, shape.qkv_cols(), shape.dtype);
  if (qk_norm_) {
    const std::int64_t cols = shape.q_cols() + shape.kv_cols();
    saved.normed = cheap ? cheap : arena.take(kClass, "normed q and k", shape.tokens, cols, shape.dtype);
    saved.q_rstd = arena.take(kClass, "norm statistics", shape.tokens, shape.heads, shape.accumulator);
    saved.k_rstd = arena.take(kClass, "norm statistics", shape.tokens, shape.kv_heads, shape.accumulator);
  }
  saved.out = arena.take(kClass, "attention output", shape.tokens, shape.q_cols(), shape.dtype);
  saved.lse = arena.take(kClass, "attention log-sum-exp", 1, shape.tokens * shape.heads, shape.accumulator);
  return saved;
}

Attention::Workspace Attention::allocate_workspace(const ModelShape& shape, Arena& arena) {
  return {.dout = arena.take(MemoryClass::workspace, "attention dout", shape.tokens, shape.q_cols(), shape.dtype),
          .dqkv = arena.take(MemoryClass::workspace, "dqkv", shape.tokens, shape.qkv_cols(), shape.dtype)};
}

Attention::Views Attention::inputs(const ModelShape& shape, const Saved& saved) const {
  const std::int64_t q = shape.q_cols(), kv = shape.kv_cols();
  const Tensor& qk = qk_norm_ ? saved.normed : saved.qkv;
  return {qk.col_range(0, q), qk.col_range(q, kv), saved.qkv.col_range(q + kv, kv)};
}

/// q and k lie side by side: heads of one tensor, [N, (H + K) D].
void Attention::rotate(const Pass& pass, const ModelShape& shape, const RopeTable& rope, const Tensor& qk,
                       bool inverse) const {
  if (rope.rotary_dim == 0) return;
  ops::rope(pass.ctx, {.x = qk.col_range(0, shape.q_cols() + shape.kv_cols()),
                       .positions = pass.batch.positions,
                       .cos_sin = rope.cos_sin,
                       .heads = shape.heads + shape.kv_heads,
                       .inverse = inverse});
}

ops::AttentionShape Attention::attention_shape(const Pass& pass, const ModelShape& shape) const {
  return {.heads = shape.heads,
          .kv_heads = shape.kv_heads,
          .head_dim = shape.head_dim,
          .scale = 1.0 / std::sqrt(static_cast<double>(shape.head_dim)),
          .window = window_,
          .max_seq = pass.batch.max_seq,
          .dropout = dropout_at(pass, dropout_, dropout_site_),
          .first_sequence = pass.batch.first_slot,
          .first_head = shape.heads * pass.tp.rank(),
          .total_heads = total_heads_};
}

void Attention::forward(const Pass& pass, const BlockParams& params, const ModelShape& shape, const RopeTable& rope,
                        const Entering& h, const Saved& saved) const {
  qkv_.forward(pass, params, h, saved.qkv);
  if (qk_norm_)
    recompute(pass, params, shape, rope, saved);
  else
    rotate(pass, shape, rope, saved.qkv, false);
  const Views in = inputs(shape, saved);
  ops::attention_forward(pass.ctx, {.shape = attention_shape(pass, shape),
                                    .q = in.q,
                                    .k = in.k,
                                    .v = in.v,
                                    .q_starts = pass.batch.starts,
                                    .kv_starts = pass.batch.starts,
                                    .out = saved.out,
                                    .lse = saved.lse});
}

void Attention::recompute(const Pass& pass, const BlockParams& params, const ModelShape& shape, const RopeTable& rope,
                          const Saved& saved) const {
  if (!qk_norm_) return;
  const std::int64_t q = shape.q_cols(), kv = shape.kv_cols();
  const Views to = inputs(shape, saved);
  ops::head_norm_forward(pass.ctx, {.eps = norm_eps_,
                                    .heads = shape.heads,
                                    .x = saved.qkv.col_range(0, q),
                                    .weight = params.w(q_norm_),
                                    .out = to.q,
                                    .rstd = saved.q_rstd});
  ops::head_norm_forward(pass.ctx, {.eps = norm_eps_,
                                    .heads = shape.kv_heads,
                                    .x = saved.qkv.col_range(q, kv),
                                    .weight = params.w(k_norm_),
                                    .out = to.k,
                                    .rstd = saved.k_rstd});
  rotate(pass, shape, rope, saved.normed, false);
}

void Attention::backward(const Pass& pass, const BlockParams& params, const ModelShape& shape, const RopeTable& rope,
                         const Entering& h, const Saved& saved, const Workspace& work, const Entering& dout,
                         const Leaving& dh) const {
  out_.backward_input(pass, params, dout, work.dout);
  out_.backward_weight(pass, params, dout.whole(pass.ctx), saved.out);
  const std::int64_t q = shape.q_cols(), kv = shape.kv_cols();
  const Views in = inputs(shape, saved);
  const Views grad = {work.dqkv.col_range(0, q), work.dqkv.col_range(q, kv), work.dqkv.col_range(q + kv, kv)};
  ops::attention_backward(pass.ctx, {.shape = attention_shape(pass, shape),
                                     .q = in.q,
                                     .k = in.k,
                                     .v = in.v,
                                     .q_starts = pass.batch.starts,
                                     .kv_starts = pass.batch.starts,
                                     .out = saved.out,
                                     .lse = saved.lse,
                                     .dout = work.dout,
                                     .dq = grad.q,
                                     .dk = grad.k,
                                     .dv = grad.v});
  rotate(pass, shape, rope, work.dqkv, true);
  if (qk_norm_) {
    ops::head_norm_backward(pass.ctx, {.heads = shape.heads,
                                       .dout = grad.q,
                                       .x = saved.qkv.col_range(0, q),
                                       .weight = params.w(q_norm_),
                                       .rstd = saved.q_rstd,
                                       .dx = grad.q,
                                       .dweight = params.g(q_norm_),
                                       .accumulate = params.accumulate});
    ops::head_norm_backward(pass.ctx, {.heads = shape.kv_heads,
                                       .dout = grad.k,
                                       .x = saved.qkv.col_range(q, kv),
                                       .weight = params.w(k_norm_),
                                       .rstd = saved.k_rstd,
                                       .dx = grad.k,
                                       .dweight = params.g(k_norm_),
                                       .accumulate = params.accumulate});
  }
  qkv_.backward_input(pass, params, work.dqkv, dh);
  qkv_.backward_weight(pass, params, work.dqkv, h.whole(pass.ctx));
}

}  // namespace trainer
