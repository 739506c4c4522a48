#include "core/config/resolve.h"

#include <cmath>
#include <limits>

#include "core/runtime/check.h"
#include "core/runtime/divide.h"

namespace trainer {
void resolve_defaults(Config& config, int world_size) {
  ModelConfig& model = config.model;
  if (model.num_key_value_heads == 0) model.num_key_value_heads = model.num_attention_heads;
  if (model.head_dim == 0 && model.num_attention_heads > 0) {
    model.head_dim = model.hidden_size / model.num_attention_heads;
  }
  if (model.intermediate_size == 0) model.intermediate_size = 4 * model.hidden_size;
  if (model.max_position_embeddings == 0) model.max_position_embeddings = config.train.seq_length;
  // cuDNN's attention within documents is not deterministic. It would still take micro-batches whose documents happen
  // to be of one length: a window's bits would depend on what else is in its micro-batch.
  if (config.data.intra_document_attention && config.train.deterministic &&
      config.train.attention == AttentionChoice::automatic)
    config.train.attention = AttentionChoice::builtin;
  if (config.checkpoint.save_dir.empty()) config.checkpoint.save_dir = config.train.output_dir + "/checkpoints";

  ParallelismConfig& parallelism = config.parallelism;
  if (parallelism.data_parallel_size == 0 && world_size > 0 && parallelism.tensor_parallel_size > 0) {
    parallelism.data_parallel_size = world_size / parallelism.tensor_parallel_size;
  }
  if (parallelism.zero_stage > 0 && parallelism.zero_group_size == 0) {
    parallelism.zero_group_size = parallelism.data_parallel_size;
  }
}

std::int64_t accumulation_steps(const Config& config) {
  const std::int64_t samples = config.train.micro_batch_size * config.parallelism.data_parallel_size;
  TRAINER_CHECK(samples > 0 && config.train.global_batch_size % samples == 0,
                "global_batch_size {} over micro_batch_size {} x data_parallel_size {}", config.train.global_batch_size,
                config.train.micro_batch_size, config.parallelism.data_parallel_size);
  return config.train.global_batch_size / samples;
}

std::int64_t most_steps(const TrainConfig& train) {
  return std::numeric_limits<std::int64_t>::max() / (train.global_batch_size * train.seq_length);
}

std::int64_t total_steps(const Config& config, std::int64_t windows_in_train_data, std::int64_t done_steps,
                         std::int64_t done_tokens) {
  const TrainConfig& train = config.train;
  if (train.train_steps > 0) return train.train_steps;
  if (train.train_tokens > 0) {
    const std::int64_t left = std::max(train.train_tokens - done_tokens, std::int64_t{0});
    return done_steps + ceil_div(left, train.global_batch_size * train.seq_length);
  }
  const double steps =
      train.train_epochs * static_cast<double>(windows_in_train_data) / static_cast<double>(train.global_batch_size);
  // A product of decimals that is meant to be whole (0.1 epochs of 30 windows) may come out a rounding error above it.
  const double whole_steps = std::ceil(steps * (1 - 1e-12));
  if (const std::int64_t most = most_steps(train); whole_steps > static_cast<double>(most))
    fail(ExitCode::config,
         "train.train_epochs: {:g} passes over {} samples are {:g} steps; right would be at most {} steps, so that "
         "their tokens fit in 64 bits",
         train.train_epochs, windows_in_train_data, whole_steps, most);
  return static_cast<std::int64_t>(whole_steps);
}

std::int64_t rotary_dims(const ModelConfig& model) {
  return static_cast<std::int64_t>(static_cast<double>(model.head_dim) * model.rotary_pct);
}

bool keeps_moments(const OptimizerConfig& optimizer) {
  return optimizer.name == OptimizerName::adamw || optimizer.momentum != 0.0;
}

std::int64_t zero_size(const ParallelismConfig& parallelism) {
  return parallelism.zero_stage == 0 ? 1 : parallelism.zero_group_size;
}

}  // namespace trainer
