// Values that follow from others. Zeros (and empty paths) in the configuration mean "derived"; after resolve_defaults()
// all code sees concrete numbers.
#pragma once
#include <cstdint>

#include "core/config/config.h"

namespace trainer {

/// Fills num_key_value_heads, head_dim, intermediate_size, max_position_embeddings, save_dir, and zero_group_size under
/// ZeRO; with `world_size` (ranks of the job; 0: not known) data_parallel_size too. Idempotent; meant for a Config that
/// passed check() (validate.h), and harmless on any other.
void resolve_defaults(Config& config, int world_size);

/// Micro-batches that each rank accumulates in a step. The Config is resolved and checked.
std::int64_t accumulation_steps(const Config& config);

/// Steps whose tokens 64 bits can count.
std::int64_t most_steps(const TrainConfig& train);

/// Steps of the whole run: train_steps, or what train_tokens or train_epochs amount to, rounded up. Throws
/// Error(config) when train_epochs amount to more than most_steps().
/// `windows_in_train_data`: samples of seq_length in one pass over the training data; used for train_epochs only.
/// `done_steps`, `done_tokens`: of a run that goes on, whose batches may have been others; used for train_tokens only.
std::int64_t total_steps(const Config& config, std::int64_t windows_in_train_data, std::int64_t done_steps = 0,
                         std::int64_t done_tokens = 0);

/// Leading elements of a head that RoPE rotates: floor(head_dim x rotary_pct), as Hugging Face's GPT-NeoX counts.
/// The model is resolved.
std::int64_t rotary_dims(const ModelConfig& model);

/// Whether the optimizer has moments: all but SGD without momentum.
bool keeps_moments(const OptimizerConfig& optimizer);

/// Ranks that share one optimizer state: 1 under ZeRO stage 0. The Config is resolved.
std::int64_t zero_size(const ParallelismConfig& parallelism);

}  // namespace trainer
