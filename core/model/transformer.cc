#include "core/model/transformer.h"

#include "core/runtime/device.h"
#include "kernels/op_profiler.h"

namespace trainer {
namespace {

std::vector<Block> make_blocks(const Config& config, ParamList& params) {
  std::vector<Block> blocks;
  blocks.reserve(static_cast<std::size_t>(config.model.num_layers));
  for (int layer = 0; layer < config.model.num_layers; ++layer) blocks.emplace_back(config, layer, params);
  return blocks;
}

}  // namespace

Transformer::Transformer(const Config& config, int tp_rank, int tp_size, int zero_size)
    : config_(config),
      shape_(model_shape(config, tp_rank, tp_size)),
      tp_size_(tp_size),
      embedding_(config, tp_size, params_),
      blocks_(make_blocks(config, params_)),
      head_(config, tp_size, params_),
      layout_(std::make_unique<ParamLayout>(
          params_.decls(), TpPlace{.rank = tp_rank, .size = tp_size, .kv_heads = config.model.num_key_value_heads},
          zero_size)) {}

void Transformer::allocate(Arena& arena) {
  rope_ = allocate_rope_table(config_, arena, shape_.accumulator);
  embedding_work_ = embedding_.allocate_workspace(config_, shape_, arena);
  block_work_ = blocks_.front().allocate_workspace(config_, shape_, arena);
  head_work_ = head_.allocate_workspace(config_, shape_, tp_size_, arena);
  d_ = arena.take(MemoryClass::workspace, "gradient of the stream", shape_.local_tokens, shape_.hidden, shape_.dtype);

  saved_.clear();
  const RecomputeMode mode = config_.activation_checkpointing.mode;
  Block::Cheap cheap;
  if (mode == RecomputeMode::selective) cheap = blocks_.front().allocate_cheap(shape_, arena);
  for (const Block& block : blocks_) {
    if (mode == RecomputeMode::full && !saved_.empty()) {
      Block::Saved saved = saved_.front();
      saved.norm1.sum = Norm::allocate_sum(shape_, arena);
      if (config_.model.parallel_residual) saved.norm2.sum = saved.norm1.sum;
      saved_.push_back(saved);
    } else {
      saved_.push_back(block.allocate(shape_, arena, mode == RecomputeMode::selective ? &cheap : nullptr));
    }
  }
}

void Transformer::fill_tables(const Context& ctx) {
  if (!rope_.cos_sin) return;
  std::vector<char> host(static_cast<std::size_t>(rope_.cos_sin.bytes()));
  fill_rope_table(config_, tensor_over(host.data(), rope_.cos_sin.dtype, rope_.cos_sin.rows, rope_.cos_sin.cols));
  copy_to_device(ctx, rope_.cos_sin.data, host.data(), rope_.cos_sin.bytes());
  synchronize(ctx);
}

BlockParams Transformer::acquire(const Pass& pass, WeightSource& weights, int block) const {
  return {.layout = *layout_, .weights = weights.acquire(pass.ctx, block), .grads = {}, .accumulate = true};
}

BlockParams Transformer::acquire_grads(const Pass& pass, GradSink& sink, int block) const {
  return {.layout = *layout_, .weights = {}, .grads = sink.grads(pass.ctx, block), .accumulate = sink.accumulate()};
}

BlockParams Transformer::acquire(const Pass& pass, WeightSource& weights, GradSink& sink, int block) const {
  BlockParams params = acquire_grads(pass, sink, block);
  params.weights = weights.acquire(pass.ctx, block);
  return params;
}

const Tensor& Transformer::sum_behind(std::size_t layer, bool one_slot) const {
  if (layer + 1 == blocks_.size()) return head_work_.norm.sum;
  return saved_[one_slot ? 0 : layer + 1].norm1.sum;
}

ResidualStream Transformer::forward(const Pass& pass, WeightSource& weights, bool one_slot) const {
  const BlockParams embedding = acquire(pass, weights, 0);
  weights.prefetch(pass.ctx, 1);
  ResidualStream stream = embedding_.forward(pass, embedding, shape_, embedding_work_);
  weights.release(pass.ctx, 0);
  for (std::size_t layer = 0; layer < blocks_.size(); ++layer) {
    const int block = static_cast<int>(layer) + 1;
    const TraceRange range(pass.ctx, "forward block", block - 1);
    const Block::Saved& saved = saved_[one_slot ? 0 : layer];
    const BlockParams params = acquire(pass, weights, block);
    weights.prefetch(pass.ctx, block + 1);
    stream =
        blocks_[layer].forward(pass, params, shape_, rope_, stream, saved, block_work_, sum_behind(layer, one_slot));
    weights.release(pass.ctx, block);
  }
  return stream;
}

template <class Use>
void Transformer::with_head(const Pass& pass, WeightSource& weights, GradSink* sink, const Use& use) const {
  const TraceRange range(pass.ctx, "head");
  const auto get = [&](int block) {
    return sink != nullptr ? acquire(pass, weights, *sink, block) : acquire(pass, weights, block);
  };
  const BlockParams params = get(head_block());
  if (head_.tied()) {
    const BlockParams embedding = get(0);
    const ParamId tokens = embedding_.tokens();
    use(params, LmHead::Weight{embedding.w(tokens), embedding.g(tokens), embedding.accumulate});
    weights.release(pass.ctx, 0);
  } else {
    use(params, head_.own_weight(params));
  }
  weights.release(pass.ctx, head_block());
}

void Transformer::recompute(const Pass& pass, const BlockParams& params, int layer) const {
  const auto i = static_cast<std::size_t>(layer);
  switch (config_.activation_checkpointing.mode) {
    case RecomputeMode::none:
      return;
    case RecomputeMode::selective:
      return blocks_[i].recompute_cheap(pass, params, shape_, rope_, saved_[i]);
    case RecomputeMode::full:
      return blocks_[i].recompute_all(pass, params, shape_, rope_, saved_[i], block_work_);
  }
}

void Transformer::train(const Pass& pass, WeightSource& weights, GradSink& sink, const Tensor& sums, double grad_scale,
                        const UpdateState* state) const {
  const ResidualStream stream = forward(pass, weights, /*one_slot=*/false);
  with_head(pass, weights, &sink, [&](const BlockParams& params, const LmHead::Weight& weight) {
    head_.train(pass, params, shape_, weight, stream, head_work_, sums, grad_scale, state, d_);
  });
  sink.ready(pass.ctx, head_block());
  if (pass.another_follows) weights.prefetch(pass.ctx, 0);
  for (int layer = static_cast<int>(blocks_.size()) - 1; layer >= 0; --layer) {
    const int block = layer + 1;
    const auto i = static_cast<std::size_t>(layer);
    const TraceRange range(pass.ctx, "backward block", layer);
    const BlockParams params = acquire(pass, weights, sink, block);
    if (layer > 0) weights.prefetch(pass.ctx, block - 1);
    recompute(pass, params, layer);
    blocks_[i].backward(pass, params, shape_, rope_, saved_[i], block_work_, d_);
    weights.release(pass.ctx, block);
    sink.ready(pass.ctx, block);
  }
  const BlockParams params = acquire_grads(pass, sink, 0);
  embedding_.backward(pass, params, shape_, embedding_work_, d_, params.accumulate || head_.tied());
  sink.ready(pass.ctx, 0);
}

void Transformer::evaluate(const Pass& pass, WeightSource& weights, const Tensor& sums) const {
  const ResidualStream stream = forward(pass, weights, /*one_slot=*/true);
  with_head(pass, weights, nullptr, [&](const BlockParams& params, const LmHead::Weight& weight) {
    head_.evaluate(pass, params, shape_, weight, stream, head_work_, sums);
  });
}

void Transformer::logits(const Pass& pass, WeightSource& weights, const Tensor& out) const {
  const ResidualStream stream = forward(pass, weights, /*one_slot=*/true);
  with_head(pass, weights, nullptr, [&](const BlockParams& params, const LmHead::Weight& weight) {
    head_.logits(pass, params, weight, stream, head_work_, out);
  });
}

}  // namespace trainer
