#include "core/model/block.h"

namespace trainer {
namespace {

Tensor norm_output(const ModelShape& shape, Arena& arena) {
  return arena.take(MemoryClass::activations, "norm output", shape.local_tokens, shape.hidden, shape.dtype);
}

}  // namespace

Block::Block(const Config& config, int layer, ParamList& params)
    : block_(layer + 1),
      parallel_residual_(config.model.parallel_residual),
      hidden_dropout_(config.model.hidden_dropout),
      norm1_(config, block_, fmt::format("model.layers.{}.input_layernorm", layer), params),
      norm2_(config, block_, fmt::format("model.layers.{}.post_attention_layernorm", layer), params),
      attention_(config, block_, fmt::format("model.layers.{}.self_attn", layer), params),
      mlp_(config, block_, fmt::format("model.layers.{}.mlp", layer), params) {}

Block::Cheap Block::allocate_cheap(const ModelShape& shape, Arena& arena) const {
  Cheap cheap;
  cheap.h1 = norm_output(shape, arena);
  cheap.h2 = norm_output(shape, arena);
  cheap.normed = attention_.allocate_cheap(shape, arena);
  cheap.activated = mlp_.allocate_cheap(shape, arena);
  return cheap;
}

Block::Saved Block::allocate(const ModelShape& shape, Arena& arena, const Cheap* cheap) const {
  Saved saved;
  saved.norm1 = norm1_.allocate(shape, arena);
  saved.h1 = cheap != nullptr ? cheap->h1 : norm_output(shape, arena);
  saved.attention = attention_.allocate(shape, arena, cheap != nullptr ? cheap->normed : Tensor{});
  saved.norm2 = norm2_.allocate(shape, arena, parallel_residual_ ? saved.norm1.sum : Tensor{});
  saved.h2 = cheap != nullptr ? cheap->h2 : norm_output(shape, arena);
  saved.mlp = mlp_.allocate(shape, arena, cheap != nullptr ? cheap->activated : Tensor{});
  return saved;
}

Block::Workspace Block::allocate_workspace(const Config& config, const ModelShape& shape, Arena& arena) const {
  const bool sequence_parallel = config.parallelism.sequence_parallel;
  const auto take = [&](const char* name, std::int64_t rows, bool needed) {
    return needed ? arena.take(MemoryClass::workspace, name, rows, shape.hidden, shape.dtype) : Tensor{};
  };
  const auto take_leaving = [&](bool needed) {
    return Leaving{.partial = take("sum over tp ranks", shape.tokens, needed),
                   .parts = take("parts of a sum over tp ranks", shape.tokens, needed && sequence_parallel),
                   .sum = take("local tokens", shape.local_tokens, needed && sequence_parallel)};
  };
  Workspace work;
  work.leaving = take_leaving(true);
  work.leaving2 = take_leaving(parallel_residual_);
  work.full = take("gathered tokens", shape.tokens, sequence_parallel);
  work.dfull = take("gathered gradients", shape.tokens, sequence_parallel);
  work.dbranch = take("gradient before dropout", shape.local_tokens, hidden_dropout_ > 0.0);
  work.attention = Attention::allocate_workspace(shape, arena);
  work.mlp = Mlp::allocate_workspace(shape, sequence_parallel, arena);
  return work;
}

Tensor Block::finish_branch(const Pass& pass, const BlockParams& params, const Workspace& work,
                            std::initializer_list<const Linear*> layers, const DropoutKey& dropout) const {
  const Tensor branch = pass.tp.finish_leave(pass.ctx, work.leaving);
  for (const Linear* layer : layers) layer->add_bias(pass, params, branch);
  if (dropout.p > 0.0) hidden_dropout(pass, branch, branch, dropout);
  return branch;
}

Entering Block::forward_until_mlp(const Pass& pass, const BlockParams& params, const ModelShape& shape,
                                  const RopeTable& rope, const ResidualStream& in, const Saved& saved,
                                  const Workspace& work) const {
  using Need = TensorParallel::Need;
  norm1_.forward(pass, params, in, saved.norm1, saved.h1);
  const Entering h1 = pass.tp.start_enter(pass.ctx, saved.h1, work.full, Need::ranges);
  attention_.forward(pass, params, shape, rope, h1, saved.attention);
  const Tensor residual = saved.norm1.sum, heads = saved.attention.out;
  const DropoutKey dropout = branch_dropout(pass, DropoutSite::attention_branch);
  ResidualStream middle{residual, {}};
  if (product_adds_residual(pass, dropout)) {
    middle.residual = saved.norm2.sum;
    attention_.out().forward(pass, params, heads, middle.residual, residual);
  } else if (parallel_residual_) {
    attention_.out().forward(pass, params, heads, work.leaving.partial);  // leaves with the MLP's
  } else {
    attention_.out().forward(pass, params, heads, work.leaving);
    middle.branch = finish_branch(pass, params, work, {&attention_.out()}, dropout);
  }
  norm2_.forward(pass, params, middle, saved.norm2, saved.h2);
  return pass.tp.start_enter(pass.ctx, saved.h2, work.full, Need::ranges);
}

ResidualStream Block::forward(const Pass& pass, const BlockParams& params, const ModelShape& shape,
                              const RopeTable& rope, const ResidualStream& in, const Saved& saved,
                              const Workspace& work, const Tensor& next_sum) const {
  mlp_.forward(pass, params, forward_until_mlp(pass, params, shape, rope, in, saved, work), saved.mlp);
  const Tensor hidden = saved.mlp.activated;
  const DropoutKey dropout = branch_dropout(pass, DropoutSite::mlp_branch);
  if (product_adds_residual(pass, dropout)) {
    mlp_.down().forward(pass, params, hidden, next_sum, saved.norm2.sum);
    return {next_sum, {}};
  }
  if (!parallel_residual_) {
    mlp_.down().forward(pass, params, hidden, work.leaving);
    return {saved.norm2.sum, finish_branch(pass, params, work, {&mlp_.down()}, dropout)};
  }
  // The attention's part is still in work.leaving.partial: both branches share one sum over tp ranks.
  mlp_.down().forward(pass, params, hidden, work.leaving, work.leaving.partial);
  return {saved.norm2.sum, finish_branch(pass, params, work, {&attention_.out(), &mlp_.down()}, dropout)};
}

void Block::recompute_all(const Pass& pass, const BlockParams& params, const ModelShape& shape, const RopeTable& rope,
                          const Saved& saved, const Workspace& work) const {
  const Entering h2 = forward_until_mlp(pass, params, shape, rope, {saved.norm1.sum, {}}, saved, work);
  mlp_.forward(pass, params, h2, saved.mlp);
}

void Block::recompute_cheap(const Pass& pass, const BlockParams& params, const ModelShape& shape, const RopeTable& rope,
                            const Saved& saved) const {
  norm1_.recompute(pass, params, saved.norm1, saved.h1);
  attention_.recompute(pass, params, shape, rope, saved.attention);
  norm2_.recompute(pass, params, saved.norm2, saved.h2);
  mlp_.recompute(pass, saved.mlp);
}

Entering Block::begin_branch_backward(const Pass& pass, const Workspace& work, const DropoutKey& dropout,
                                      const Tensor& d) const {
  Tensor dbranch = d;
  if (dropout.p > 0.0) {
    dbranch = work.dbranch;
    hidden_dropout(pass, d, dbranch, dropout);
  }
  return pass.tp.start_enter(pass.ctx, dbranch, work.dfull, TensorParallel::Need::whole);
}

void Block::backward(const Pass& pass, const BlockParams& params, const ModelShape& shape, const RopeTable& rope,
                     const Saved& saved, const Workspace& work, const Tensor& d) const {
  // The input of a branch is gathered again behind its gradient: it is needed for the last product only.
  const auto enter_again = [&](const Tensor& h) {
    return pass.tp.start_enter(pass.ctx, h, work.full, TensorParallel::Need::whole);
  };
  const Entering dmlp = begin_branch_backward(pass, work, branch_dropout(pass, DropoutSite::mlp_branch), d);
  const Entering h2 = enter_again(saved.h2);
  if (parallel_residual_) {
    mlp_.backward(pass, params, h2, saved.mlp, work.mlp, dmlp, work.leaving2);
    const Tensor dh2 = pass.tp.finish_leave(pass.ctx, work.leaving2);
    const Entering h1 = enter_again(saved.h1);
    attention_.backward(pass, params, shape, rope, h1, saved.attention, work.attention, dmlp, work.leaving);
    const Tensor dh1 = pass.tp.finish_leave(pass.ctx, work.leaving);
    norm2_.backward(pass, params, saved.norm2, dh2, d, d);
    norm1_.backward(pass, params, saved.norm1, dh1, d, d);
    return;
  }
  mlp_.backward(pass, params, h2, saved.mlp, work.mlp, dmlp, work.leaving);
  norm2_.backward(pass, params, saved.norm2, pass.tp.finish_leave(pass.ctx, work.leaving), d, d);

  const Entering dattention = begin_branch_backward(pass, work, branch_dropout(pass, DropoutSite::attention_branch), d);
  const Entering h1 = enter_again(saved.h1);
  attention_.backward(pass, params, shape, rope, h1, saved.attention, work.attention, dattention, work.leaving);
  norm1_.backward(pass, params, saved.norm1, pass.tp.finish_leave(pass.ctx, work.leaving), d, d);
}

}  // namespace trainer
