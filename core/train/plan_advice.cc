// What makes a buffer smaller on the same ranks. Advised is only what validates.
#include <algorithm>
#include <array>
#include <initializer_list>
#include <string_view>

#include "core/config/resolve.h"
#include "core/config/validate.h"
#include "core/train/plan.h"
#include "core/train/plan_changes.h"

namespace trainer {
namespace {

/// Texts of advice; empty: not to be had.
using Advice = std::string;

Advice first_of(std::initializer_list<Advice> advice) {
  return *std::find_if(advice.begin(), advice.end() - 1, [](const Advice& text) { return !text.empty(); });
}

int ranks_of(const Config& config) {
  return static_cast<int>(config.parallelism.tensor_parallel_size * config.parallelism.data_parallel_size);
}

Advice less_samples(const Config& config) {
  const auto smaller = smaller_micro_batches(config, ranks_of(config));
  if (smaller.empty()) return {};
  return fmt::format("train.micro_batch_size: {} (more micro-batches a step, the same result)",
                     smaller.front().train.micro_batch_size);
}

Advice shorter_samples(const Config& config) {
  Config shorter = config;
  shorter.train.seq_length = config.train.seq_length / 2;
  if (!find_cross_faults(shorter, ranks_of(config)).empty()) return {};
  return fmt::format("train.seq_length: {} (another training)", shorter.train.seq_length);
}

Advice split_model(const Config& config) {
  const auto larger = larger_tensor_parallel(config, ranks_of(config));
  if (larger.empty()) return {};
  const ParallelismConfig& parallel = larger.front().parallelism;
  return fmt::format("parallelism.tensor_parallel_size: {} (a part of each matrix on each rank; data parallel {})",
                     parallel.tensor_parallel_size, parallel.data_parallel_size);
}

Advice split_tokens(const Config& config) {
  const ParallelismConfig& parallel = config.parallelism;
  if (parallel.tensor_parallel_size == 1 || parallel.sequence_parallel) return {};
  Config split = config;
  split.parallelism.sequence_parallel = true;
  if (!find_cross_faults(split, ranks_of(config)).empty()) return {};
  return "parallelism.sequence_parallel: true (a part of the tokens on each rank)";
}

Advice shard_over_dp(const Config& config, int stage) {
  const ParallelismConfig& parallel = config.parallelism;
  if (parallel.data_parallel_size == 1 || parallel.zero_stage >= stage) return {};
  return fmt::format("parallelism.zero_stage: {} (1/{} on each data-parallel rank)", stage,
                     parallel.zero_group_size > 0 ? parallel.zero_group_size : parallel.data_parallel_size);
}

/// Where no setting is left.
Advice more_ranks(const Config& config, int stage) {
  return fmt::format("more ranks, with parallelism.zero_stage: {}",
                     std::max<std::int64_t>(stage, config.parallelism.zero_stage));
}

Advice shrink_optimizer_state(const Config& config, bool moments) {
  const bool wide =
      moments && config.optimizer.moments_dtype != MomentsDtype::bf16 && config.precision.dtype != Precision::float64;
  return first_of(
      {shard_over_dp(config, 1), wide ? "optimizer.moments_dtype: bf16 (half the bytes, rounded stochastically)" : "",
       split_model(config), "optimizer.offload: true (in the host's memory; each update brings it and takes it back)"});
}

Advice shrink_weights(const Config& config, std::string_view name) {
  return first_of(
      {name == "resident weights" ? "parallelism.zero_resident_layers: 0 (gathered for every micro-batch)" : "",
       shard_over_dp(config, 3), split_model(config), more_ranks(config, 3)});
}

Advice shrink_communication(const Config& config, std::string_view name) {
  const ParallelismConfig& parallel = config.parallelism;
  const bool sharded = parallel.zero_stage >= 2 && zero_size(parallel) > 1;
  if (name == "gradients on the wire")
    return sharded ? "nothing: a piece of a block at a time"
                   : "precision.grad_reduce_dtype: float32 (gradients are reduced where they are)";
  const bool wide = name == "gradients of a block" && config.precision.dtype == Precision::bf16 &&
                    config.precision.grad_reduce_dtype == ReduceDtype::float32 &&
                    parallel.tensor_parallel_size <= config.model.num_key_value_heads;  // parallel/grad_sink.cc
  return first_of({wide ? "precision.grad_reduce_dtype: bf16 (half the bytes of a transformer block)" : "",
                   split_model(config), "nothing: whole blocks, while they are needed"});
}

Advice shrink_activations(const Config& config, std::string_view name) {
  const RecomputeMode mode = config.activation_checkpointing.mode;
  constexpr std::array<std::string_view, 3> kCheap = {"norm output", "mlp activated", "normed q and k"};
  const bool kept = name == "mlp activated" && config.model.activation == Activation::gelu_tanh;  // core/model/mlp.h
  const bool cheap = !kept && std::find(kCheap.begin(), kCheap.end(), name) != kCheap.end();
  return first_of(
      {mode == RecomputeMode::none && cheap
           ? "activation_checkpointing.mode: selective (computed again without a matrix product)"
           : "",
       less_samples(config),
       mode != RecomputeMode::full ? "activation_checkpointing.mode: full (about a third more compute)" : "",
       split_tokens(config), split_model(config), shorter_samples(config), "nothing: one token"});
}

Advice shrink_workspace(const Config& config) {
  return first_of({less_samples(config), split_tokens(config), shorter_samples(config), "nothing: one token"});
}

}  // namespace

std::string shrink_advice(const Config& config, const Arena::Buffer& buffer) {
  switch (buffer.memory_class) {
    case MemoryClass::weights:
      return shrink_weights(config, buffer.name);
    case MemoryClass::gradients:
      return first_of({shard_over_dp(config, 2), split_model(config), more_ranks(config, 2)});
    case MemoryClass::masters:
      return shrink_optimizer_state(config, /*moments=*/false);
    case MemoryClass::moments:
      return shrink_optimizer_state(config, /*moments=*/true);
    case MemoryClass::activations:
      return shrink_activations(config, buffer.name);
    case MemoryClass::workspace:
      return shrink_workspace(config);
    case MemoryClass::logits:
      return first_of({split_model(config), less_samples(config), shorter_samples(config), "nothing: one token"});
    case MemoryClass::communication:
      return shrink_communication(config, buffer.name);
    case MemoryClass::host:
      break;
  }
  return {};
}

}  // namespace trainer
