#include "core/model/lm_head.h"

#include <algorithm>

#include "core/model/embedding.h"
#include "core/runtime/divide.h"

namespace trainer {
namespace {

/// Bytes of logits that exist at a time. Each chunk reads and writes the whole gradient of the head's weight once more,
/// so few large ones are better than many small ones.
constexpr std::int64_t kLogitsBytes = std::int64_t{2} << 30;

/// Tokens of a chunk: all chunks are of one size, but for the last, which may be a little smaller.
std::int64_t chunk_rows(const ModelShape& shape) {
  constexpr std::int64_t kRowMultiple = 128;  // whole tiles for the GEMM
  const std::int64_t bytes = shape.tokens * shape.vocab * dtype_size(shape.dtype);
  const std::int64_t chunks = ceil_div(bytes, kLogitsBytes);
  const std::int64_t rows = ceil_div(shape.tokens, chunks);
  return std::min(shape.tokens, round_up(rows, kRowMultiple));
}

}  // namespace

LmHead::LmHead(const Config& config, int tp_size, ParamList& params)
    : z_loss_(config.train.z_loss), norm_(config, static_cast<int>(config.model.num_layers) + 1, "model.norm", params) {
  if (!config.model.tie_word_embeddings)
    weight_ =
        params.add(vocabulary_decl(config, static_cast<int>(config.model.num_layers) + 1, "lm_head.weight", tp_size));
}

LmHead::Workspace LmHead::allocate_workspace(const Config& config, const ModelShape& shape, int tp_size,
                                             Arena& arena) const {
  const bool sequence_parallel = config.parallelism.sequence_parallel;
  const auto take = [&](const char* name, std::int64_t rows) {
    return arena.take(MemoryClass::workspace, name, rows, shape.hidden, shape.dtype);
  };
  const std::int64_t rows = chunk_rows(shape);
  Workspace work;
  work.norm = norm_.allocate(shape, arena);
  work.h = take("head input", shape.local_tokens);
  if (sequence_parallel) work.full = take("gathered tokens", shape.tokens);
  work.dfull = take("head gradient", shape.tokens);
  if (sequence_parallel) work.dlocal = take("local tokens", shape.local_tokens);
  work.logits = arena.take(MemoryClass::logits, "logits", rows, shape.vocab, shape.dtype);
  if (tp_size > 1) {
    const auto stats = [&](std::int64_t count) {
      return arena.take(MemoryClass::logits, "cross-entropy statistics", count, 3, shape.accumulator);
    };
    work.stats = stats(rows);
    work.gathered_stats = stats(rows * tp_size);
  }
  return work;
}

Tensor LmHead::normalise(const Pass& pass, const BlockParams& params, const ResidualStream& in,
                         const Workspace& work) const {
  norm_.forward(pass, params, in, work.norm, work.h);
  return pass.tp.enter(pass.ctx, work.h, work.full);
}

Tensor LmHead::chunk_loss(const Pass& pass, const ModelShape& shape, const Weight& weight, const Tensor& h,
                          std::int64_t first, std::int64_t count, const Workspace& work, const Tensor& sums,
                          const LossScaling& scaling) const {
  const Tensor logits = work.logits.row_range(0, count);
  const Tensor targets = pass.batch.targets.col_range(first, count);
  ops::linear_forward(pass.ctx, {.x = h.row_range(first, count), .w = weight.w, .bias = {}, .y = logits});
  if (pass.tp.size() == 1) {
    ops::cross_entropy(pass.ctx, {.logits = logits,
                                  .targets = targets,
                                  .sums = sums,
                                  .valid_cols = shape.vocab_valid,
                                  .grad_scale = scaling.grad_scale,
                                  .z_loss = z_loss_,
                                  .state = scaling.state,
                                  .backward = scaling.backward});
    return logits;
  }
  const Tensor stats = work.stats.row_range(0, count);
  const Tensor gathered = work.gathered_stats.row_range(0, count * pass.tp.size());
  ops::cross_entropy_stats(pass.ctx, {.logits = logits,
                                      .targets = targets,
                                      .stats = stats,
                                      .first_col = shape.vocab_first,
                                      .valid_cols = shape.vocab_valid});
  pass.tp.communicator().all_gather(pass.ctx, stats, gathered);
  ops::cross_entropy_finish(pass.ctx, {.logits = logits,
                                       .targets = targets,
                                       .stats = gathered,
                                       .sums = sums,
                                       .first_col = shape.vocab_first,
                                       .valid_cols = shape.vocab_valid,
                                       .parts = pass.tp.size(),
                                       .grad_scale = scaling.grad_scale,
                                       .z_loss = z_loss_,
                                       .state = scaling.state,
                                       .backward = scaling.backward});
  return logits;
}

void LmHead::evaluate(const Pass& pass, const BlockParams& params, const ModelShape& shape, const Weight& weight,
                      const ResidualStream& in, const Workspace& work, const Tensor& sums) const {
  const Tensor h = normalise(pass, params, in, work);
  for (std::int64_t first = 0; first < h.rows; first += work.logits.rows)
    chunk_loss(pass, shape, weight, h, first, std::min(work.logits.rows, h.rows - first), work, sums, {});
}

void LmHead::train(const Pass& pass, const BlockParams& params, const ModelShape& shape, const Weight& weight,
                   const ResidualStream& in, const Workspace& work, const Tensor& sums, double grad_scale,
                   const UpdateState* state, const Tensor& d) const {
  const Tensor h = normalise(pass, params, in, work);
  const LossScaling scaling{.grad_scale = grad_scale, .state = state, .backward = true};
  for (std::int64_t first = 0; first < h.rows; first += work.logits.rows) {
    const std::int64_t count = std::min(work.logits.rows, h.rows - first);
    const Tensor dlogits = chunk_loss(pass, shape, weight, h, first, count, work, sums, scaling);
    ops::linear_backward_weight(
        pass.ctx,
        {.dy = dlogits, .x = h.row_range(first, count), .dw = weight.dw, .accumulate = weight.accumulate || first > 0});
    ops::linear_backward_input(pass.ctx, {.dy = dlogits, .w = weight.w, .dx = work.dfull.row_range(first, count)});
  }
  const Tensor dh = pass.tp.leave(pass.ctx, work.dfull, work.dlocal);
  norm_.backward(pass, params, work.norm, dh, {}, d);
}

void LmHead::logits(const Pass& pass, const BlockParams& params, const Weight& weight, const ResidualStream& in,
                    const Workspace& work, const Tensor& out) const {
  const Tensor h = normalise(pass, params, in, work);
  ops::linear_forward(pass.ctx, {.x = h, .w = weight.w, .bias = {}, .y = out});
}

}  // namespace trainer
