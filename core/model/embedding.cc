#include "core/model/embedding.h"

namespace trainer {

ParamDecl vocabulary_decl(const Config& config, int block, const std::string& name, int tp_size) {
  ParamDecl decl;
  decl.name = name;
  decl.block = block;
  decl.rows = config.model.vocab_size;
  decl.padded_rows = model_shape(config, 0, tp_size).vocab * tp_size;
  decl.cols = config.model.hidden_size;
  decl.split = ParamSplit::rows;
  decl.init = ParamInit::normal;
  decl.init_std = config.model.initializer_range;
  decl.decay = config.optimizer.decay_embeddings;
  return decl;
}

Embedding::Embedding(const Config& config, int tp_size, ParamList& params) : dropout_(config.model.hidden_dropout) {
  tokens_ = params.add(vocabulary_decl(config, 0, "model.embed_tokens.weight", tp_size));
  if (config.model.position != Position::learned) return;
  ParamDecl decl;
  decl.name = "model.embed_positions.weight";
  decl.rows = config.model.max_position_embeddings;
  decl.cols = config.model.hidden_size;
  decl.arrival = config.parallelism.sequence_parallel ? GradArrival::partial : GradArrival::whole;
  decl.init_std = config.model.initializer_range;
  decl.decay = config.optimizer.decay_embeddings;
  positions_ = params.add(decl);
}

Embedding::Workspace Embedding::allocate_workspace(const Config& config, const ModelShape& shape, Arena& arena) const {
  const bool sequence_parallel = config.parallelism.sequence_parallel;
  const auto take = [&](const char* name, std::int64_t rows, bool needed) {
    return needed ? arena.take(MemoryClass::workspace, name, rows, shape.hidden, shape.dtype) : Tensor{};
  };
  return {.partial = take("embedding", shape.tokens, true),
          .local = take("local tokens", shape.local_tokens, sequence_parallel),
          .dfull = take("gathered gradients", shape.tokens, sequence_parallel)};
}

Tensor Embedding::local_positions(const Pass& pass) const {
  const std::int64_t tokens = pass.batch.positions.cols;
  return pass.batch.positions.col_range(pass.tp.first_row(tokens), pass.tp.local_rows(tokens));
}

ResidualStream Embedding::forward(const Pass& pass, const BlockParams& params, const ModelShape& shape,
                                  const Workspace& work) const {
  ops::embedding_forward(
      pass.ctx,
      {.ids = pass.batch.ids, .weight = params.w(tokens_), .out = work.partial, .first_row = shape.vocab_first});
  const Tensor x = pass.tp.leave(pass.ctx, work.partial, work.local);
  if (positions_ != kNoParam)
    ops::embedding_forward(
        pass.ctx, {.ids = local_positions(pass), .weight = params.w(positions_), .out = x, .accumulate = true});
  const DropoutKey dropout = dropout_at(pass, dropout_, dropout_site(0, DropoutSite::embedding));
  if (dropout.p > 0.0) hidden_dropout(pass, x, x, dropout);
  return {x, {}};
}

void Embedding::backward(const Pass& pass, const BlockParams& params, const ModelShape& shape, const Workspace& work,
                         const Tensor& d, bool accumulate_tokens) const {
  const DropoutKey dropout = dropout_at(pass, dropout_, dropout_site(0, DropoutSite::embedding));
  if (dropout.p > 0.0) hidden_dropout(pass, d, d, dropout);
  if (positions_ != kNoParam)
    ops::embedding_backward(
        pass.ctx,
        {.ids = local_positions(pass), .dout = d, .dweight = params.g(positions_), .accumulate = params.accumulate});
  ops::embedding_backward(pass.ctx, {.ids = pass.batch.ids,
                                     .dout = pass.tp.enter(pass.ctx, d, work.dfull),
                                     .dweight = params.g(tokens_),
                                     .first_row = shape.vocab_first,
                                     .accumulate = accumulate_tokens});
}

}  // namespace trainer
