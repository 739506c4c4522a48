#include "core/model/pass.h"

#include <algorithm>
#include <cmath>

namespace trainer {

ModelShape model_shape(const Config& config, int tp_rank, int tp_size) {
  const ModelConfig& model = config.model;
  ModelShape shape;
  shape.sequences = config.train.micro_batch_size;
  shape.seq_length = config.train.seq_length;
  shape.tokens = shape.sequences * shape.seq_length;
  shape.local_tokens = config.parallelism.sequence_parallel ? shape.tokens / tp_size : shape.tokens;
  shape.hidden = model.hidden_size;
  shape.heads = model.num_attention_heads / tp_size;
  shape.kv_heads = std::max<std::int64_t>(1, model.num_key_value_heads / tp_size);
  shape.head_dim = model.head_dim;
  shape.mlp = model.intermediate_size / tp_size;
  constexpr std::int64_t kVocabMultiple = 64;  // whole tiles for the GEMM of the head
  shape.vocab = (model.vocab_size + kVocabMultiple * tp_size - 1) / (kVocabMultiple * tp_size) * kVocabMultiple;
  shape.vocab_first = shape.vocab * tp_rank;
  shape.vocab_valid = std::clamp<std::int64_t>(model.vocab_size - shape.vocab_first, 0, shape.vocab);
  shape.dtype = weight_dtype(config.precision.dtype);
  shape.accumulator = accumulator_dtype(shape.dtype);
  return shape;
}

double residual_init_std(const ModelConfig& model) {
  return model.initializer_range / std::sqrt(2.0 * static_cast<double>(model.num_layers));
}

void hidden_dropout(const Pass& pass, const Tensor& x, const Tensor& out, const DropoutKey& dropout) {
  const std::int64_t tokens = pass.batch.ids.cols;
  const std::int64_t first = pass.batch.first_token + pass.tp.first_row(tokens);
  ops::dropout(pass.ctx, {.x = x, .out = out, .dropout = dropout, .row_offset = first});
}

}  // namespace trainer
