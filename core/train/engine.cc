#include "core/train/engine.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "core/config/resolve.h"
#include "optim/update_state.h"

namespace trainer {
namespace {

Dtype wire_dtype(const Config& config, Dtype accumulator) {
  return config.precision.grad_reduce_dtype == ReduceDtype::bf16 ? Dtype::bf16 : accumulator;
}

Tensor take_ints(Arena& arena, const char* name, std::int64_t count) {
  return arena.take(MemoryClass::workspace, name, 1, count, Dtype::i32);
}

void copy_ints(const std::vector<std::int32_t>& from, const Tensor& to) {
  TRAINER_CHECK(static_cast<std::int64_t>(from.size()) == to.numel(), "{} integers for {}", from.size(), to.numel());
  std::memcpy(to.as<std::int32_t>(), from.data(), from.size() * sizeof(std::int32_t));
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

LoaderShape loader_shape(const Config& config, const Mesh& mesh) {
  return {.seq_length = config.train.seq_length,
          .micro_batch_size = config.train.micro_batch_size,
          .global_batch_size = config.train.global_batch_size,
          .dp_rank = mesh.dp().rank(),
          .dp_size = mesh.dp().size(),
          .prefetch = config.data.prefetch};
}

Engine::Parts::Parts(const Config& config, const Mesh& mesh, Arena& arena)
    : model(config, mesh.tp().rank(), mesh.tp().size(), mesh.zero().size()),
      weights(model.layout(), mesh, model.shape().dtype, arena),
      sink(model.layout(), mesh, model.shape().accumulator, wire_dtype(config, model.shape().accumulator), arena),
      optimizer(config, model.layout(), mesh, arena) {
  model.allocate(arena);
  const ModelShape& shape = model.shape();
  batch.ids = take_ints(arena, "token ids", shape.tokens);
  batch.targets = take_ints(arena, "targets", shape.tokens);
  batch.positions = take_ints(arena, "positions", shape.tokens);
  batch.starts = take_ints(arena, "sequence starts", shape.sequences + 1);
  batch.max_seq = shape.seq_length;
  sums = arena.take(MemoryClass::workspace, "loss sums", 1, 3, Dtype::f64);
  norm = arena.take(MemoryClass::workspace, "gradient norm", 1, 2, Dtype::f64);
}

Engine::Engine(const Config& config, Context ctx, std::unique_ptr<Communicator> world, const FaultPlan& fault)
    : config_(config),
      ctx_(ctx),
      fault_(fault),
      mesh_(std::move(world), mesh_shape(config)),
      tp_(mesh_.tp(), config.parallelism.sequence_parallel),
      grad_scale_(1.0 / static_cast<double>(config.train.global_batch_size * config.train.seq_length)) {
  Arena measuring;
  Parts(config_, mesh_, measuring);
  plan_ = measuring.plan();
  largest_ = measuring.largest();
  arena_ = std::make_unique<Arena>(ctx_.device, plan_);
  parts_ = std::make_unique<Parts>(config_, mesh_, *arena_);
  parts_->model.fill_tables(ctx_);
  state_ = initial_update_state(config_.precision);
}

void Engine::initialize() {
  parts_->optimizer.initialize(ctx_, parts_->weights);
}

Batch Engine::upload(const MicroBatch& micro_batch) const {
  Batch batch = parts_->batch;
  copy_ints(micro_batch.inputs, batch.ids);
  copy_ints(micro_batch.targets, batch.targets);
  copy_ints(micro_batch.positions, batch.positions);
  copy_ints(micro_batch.sequence_starts, batch.starts);
  batch.first_slot = micro_batch.first_slot;
  return batch;
}

void Engine::zero_sums() {
  ops::fill(ctx_, {.x = parts_->sums, .value = 0.0});
}

void Engine::compute_gradients(const MicroBatchSource& source, std::int64_t step) {
  const std::int64_t accumulation = accumulation_steps(config_);
  const std::uint64_t seed = mix_key(static_cast<std::uint64_t>(config_.train.seed), "dropout");
  const std::uint64_t dropout_key = mix_key(seed, static_cast<std::uint64_t>(step));
  zero_sums();
  for (std::int64_t micro = 0; micro < accumulation; ++micro) {
    const MicroBatch& micro_batch = source();
    TRAINER_CHECK(micro_batch.step == step && micro_batch.micro == micro, "the source is at step {} micro-batch {}",
                  micro_batch.step, micro_batch.micro);
    if (observer_) observer_(micro_batch);
    const Batch batch = upload(micro_batch);
    const Pass pass{.ctx = ctx_, .tp = tp_, .batch = batch, .dropout_key = dropout_key, .dropout = true};
    parts_->sink.begin_micro_batch(micro == 0, micro == accumulation - 1);
    parts_->model.train(pass, parts_->weights, parts_->sink, parts_->sums, grad_scale_, &state_);
  }
  mesh_.dp().all_reduce(ctx_, parts_->sums, ReduceOp::sum);
}

void Engine::poison_gradients() {
  const auto poison = fault_.poison("gradients");
  if (!poison) return;
  const ParamLayout& layout = parts_->model.layout();
  for (ParamId id = 0; id < layout.num_params(); ++id) {
    if (!poison->tensor.empty() && layout.decl(id).name != poison->tensor) continue;
    const int block = layout.decl(id).block;
    const FlatRange shard = parts_->optimizer.range(block);
    const std::int64_t first = std::max(shard.first, layout.local(id).offset);
    if (first >= std::min(shard.first + shard.count, layout.local(id).offset + layout.local(id).real_numel())) continue;
    ops::fill(ctx_, {.x = parts_->sink.shard(block).flat_range(first - shard.first, 1), .value = poison->value});
    return;
  }
}

const UpdateState& Engine::step(const MicroBatchSource& source, std::int64_t step, double lr) {
  fault_.at("forward");
  compute_gradients(source, step);
  fault_.at("gradients");
  poison_gradients();
  ops::fill(ctx_, {.x = parts_->norm.col_range(0, 1), .value = 0.0});
  ops::fill(ctx_, {.x = parts_->norm.col_range(1, 1), .value = std::numeric_limits<double>::infinity()});
  parts_->optimizer.accumulate_norm(ctx_, parts_->sink, parts_->norm);
  parts_->optimizer.reduce_norm(ctx_, mesh_, parts_->norm);
  ops::prepare_update(ctx_, {.state = &state_,
                             .norm = parts_->norm,
                             .sums = parts_->sums,
                             .grad_scale = grad_scale_,
                             .clip_grad_norm = config_.optimizer.clip_grad_norm,
                             .scaling = uses_loss_scaling(config_.precision),
                             .scale = config_.precision.loss_scale});
  fault_.at("optimizer");
  parts_->optimizer.step(ctx_, parts_->weights, parts_->sink, &state_, lr);
  return state_;
}

EvalResult Engine::evaluate(const MicroBatchSource& source, std::int64_t steps) {
  zero_sums();
  for (std::int64_t i = 0; i < steps * accumulation_steps(config_); ++i) {
    const Batch batch = upload(source());
    const Pass pass{.ctx = ctx_, .tp = tp_, .batch = batch, .dropout_key = 0, .dropout = false};
    parts_->model.evaluate(pass, parts_->weights, parts_->sums);
  }
  mesh_.dp().all_reduce(ctx_, parts_->sums, ReduceOp::sum);
  const double* sums = parts_->sums.as<double>();
  return {.loss = sums[0] / sums[2], .target_tokens = static_cast<std::int64_t>(sums[2])};
}

}  // namespace trainer
