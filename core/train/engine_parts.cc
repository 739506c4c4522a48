#include "core/train/engine_parts.h"

#include <algorithm>

#include "core/config/resolve.h"

namespace trainer {
namespace {

Dtype wire_dtype(const Config& config, Dtype accumulator) {
  return config.precision.grad_reduce_dtype == ReduceDtype::bf16 ? Dtype::bf16 : accumulator;
}

std::unique_ptr<WeightSource> make_weights(const Config& config, const Transformer& model, const Mesh& mesh,
                                           CommQueue& queue, Arena& arena) {
  if (config.parallelism.zero_stage < 3 || mesh.zero().size() == 1)
    return std::make_unique<ResidentWeights>(model.layout(), mesh, model.shape().dtype, queue, arena);
  return std::make_unique<GatheringWeights>(model.layout(), mesh,
                                            GatheringWeights::Options{
                                                .dtype = model.shape().dtype,
                                                .tied = config.model.tie_word_embeddings,
                                                .resident_layers = config.parallelism.zero_resident_layers,
                                            },
                                            queue, arena);
}

/// Sequence starts of a micro-batch, and the end: at most a document a token.
std::int64_t most_starts(const Config& config, const ModelShape& shape) {
  return (config.data.intra_document_attention ? shape.tokens : shape.sequences) + 1;
}

}  // namespace

MeshShape mesh_shape(const Config& config) {
  const ParallelismConfig& parallel = config.parallelism;
  const auto tp = static_cast<int>(parallel.tensor_parallel_size);
  const auto kv_heads = static_cast<int>(config.model.num_key_value_heads);
  return {.tp = tp,
          .dp = static_cast<int>(parallel.data_parallel_size),
          .zero = static_cast<int>(zero_size(parallel)),
          .kv_replicas = std::max(1, tp / kv_heads)};
}

EngineParts::EngineParts(const Config& config, const Mesh& mesh, CommQueue& queue, Arena& arena)
    : model(config, mesh.tp().rank(), mesh.tp().size(), mesh.zero().size()),
      weights(make_weights(config, model, mesh, queue, arena)),
      sink(model.layout(), mesh,
           {.accumulator = model.shape().accumulator,
            .wire = wire_dtype(config, model.shape().accumulator),
            .weights = model.shape().dtype,
            .sharded = config.parallelism.zero_stage >= 2,
            .tied = config.model.tie_word_embeddings},
           queue, arena),
      optimizer(config, model.layout(), mesh, arena, queue.device()) {
  model.allocate(arena);
  const ModelShape& shape = model.shape();
  // One buffer, so that a micro-batch is one copy.
  const std::int64_t starts = most_starts(config, shape);
  ints = arena.take(MemoryClass::workspace, "micro-batch", 1, 3 * shape.tokens + starts, Dtype::i32);
  batch.ids = ints.flat_range(0, shape.tokens);
  batch.targets = ints.flat_range(shape.tokens, shape.tokens);
  batch.positions = ints.flat_range(2 * shape.tokens, shape.tokens);
  batch.starts = ints.flat_range(3 * shape.tokens, starts);
  sums = arena.take(MemoryClass::workspace, "loss sums", 1, 3, Dtype::f64);
  norm = arena.take(MemoryClass::workspace, "gradient norm", 1, 2, Dtype::f64);
  state = arena.take(MemoryClass::workspace, "update state", 1, sizeof(UpdateState), Dtype::u8);
}

}  // namespace trainer
