#include "core/train/engine.h"

#include <algorithm>
#include <exception>
#include <limits>

#include "core/config/resolve.h"
#include "core/runtime/environment.h"
#include "kernels/gemm_choices.h"
#include "kernels/op_profiler.h"
#include "optim/update_state.h"
#include "parallel/host_exchange.h"
#include "parallel/profiled_communicator.h"
#include "parallel/skipping_communicator.h"

namespace trainer {
namespace {

int ranks_on_this_host(Communicator& world) {
  const std::vector<std::string> hosts = gather_strings(world, host_name());
  return static_cast<int>(std::count(hosts.begin(), hosts.end(), host_name()));
}

}  // namespace

LoaderShape loader_shape(const Config& config, const Mesh& mesh) {
  return {.seq_length = config.train.seq_length,
          .micro_batch_size = config.train.micro_batch_size,
          .global_batch_size = config.train.global_batch_size,
          .dp_rank = mesh.dp().rank(),
          .dp_size = mesh.dp().size(),
          .prefetch = config.data.prefetch};
}

Engine::Engine(const Config& config, Context ctx, std::unique_ptr<Communicator> world, const FaultPlan& fault)
    : config_(config),
      ctx_(ctx),
      fault_(fault),
      mesh_(std::make_unique<ProfiledCommunicator>(std::make_unique<SkippingCommunicator>(std::move(world), skips_)),
            mesh_shape(config)),
      tp_(ctx, mesh_.tp(), config.parallelism.sequence_parallel, config.comm.overlap),
      queue_(ctx, config.comm.overlap),
      grad_scale_(1.0 / static_cast<double>(config.train.global_batch_size * config.train.seq_length)),
      reported_{Reported{allocate_pinned(ctx.device, sizeof(StepEnd), "update state"), Event(ctx.device)},
                Reported{allocate_pinned(ctx.device, sizeof(StepEnd), "update state"), Event(ctx.device)}},
      staging_{Staging{nullptr, Event(ctx.device)}, Staging{nullptr, Event(ctx.device)}} {
  if (ctx_.device.kind == DeviceKind::cpu) {
    estimate_ = plan_memory(config_, mesh_, DeviceKind::cpu);
  } else {
    const DeviceProperties card = device_properties(ctx_.device);
    estimate_ = plan_memory(config_, mesh_, DeviceKind::cuda, card.sm);
    check_fits(config_, estimate_, mesh_.world().rank(), card.free_bytes, card.total_bytes - card.free_bytes);
  }
  if (config_.optimizer.offload) check_host_fits(estimate_, ranks_on_this_host(mesh_.world()), host_ram_bytes());
  arena_ = std::make_unique<Arena>(ctx_.device, estimate_.classes);
  parts_ = std::make_unique<EngineParts>(config_, mesh_, queue_, *arena_);
  parts_->model.fill_tables(ctx_);
  for (Staging& staging : staging_) staging.memory = allocate_pinned(ctx_.device, parts_->ints.bytes(), "micro-batch");
  restore_state(initial_update_state(config_.precision));
}

Engine::~Engine() {
  if (std::uncaught_exceptions() > 0) mesh_.world().abort();
}

void Engine::initialize() {
  parts_->optimizer.initialize(ctx_, *parts_->weights);
}

Batch Engine::upload(const MicroBatch& micro_batch) const {
  Batch batch = parts_->batch;
  const std::vector<std::int32_t>& starts = micro_batch.sequence_starts;
  Staging& staging = staging_[uploads_++ % staging_.size()];
  staging.copied.synchronize();  // the copy that used it two micro-batches ago
  auto* to = static_cast<std::int32_t*>(staging.memory.get());
  for (const auto* part : {&micro_batch.inputs, &micro_batch.targets, &micro_batch.positions, &starts})
    to = std::copy(part->begin(), part->end(), to);
  const std::int64_t filled = to - static_cast<std::int32_t*>(staging.memory.get());
  TRAINER_CHECK(filled == 3 * batch.ids.cols + std::ssize(starts) && filled <= parts_->ints.numel(),
                "a micro-batch of {} integers, {} of them starts; expected at most {}, {} a part", filled,
                starts.size(), parts_->ints.numel(), batch.ids.cols);
  copy_to_device(ctx_, parts_->ints.data, staging.memory.get(), filled * dtype_size(Dtype::i32));
  staging.copied.record(ctx_);
  batch.starts = batch.starts.flat_range(0, std::ssize(starts));
  for (std::size_t s = 0; s + 1 < starts.size(); ++s)
    batch.max_seq = std::max<std::int64_t>(batch.max_seq, starts[s + 1] - starts[s]);
  batch.first_slot = micro_batch.first_slot;
  batch.first_token = micro_batch.first_slot * config_.train.seq_length;
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
    const bool last = micro == accumulation - 1;
    const Pass pass{
        .ctx = ctx_, .tp = tp_, .batch = batch, .dropout_key = dropout_key, .dropout = true, .another_follows = !last};
    parts_->sink.begin_micro_batch(micro == 0, last);
    parts_->model.train(pass, *parts_->weights, parts_->sink, parts_->sums, grad_scale_, device_state());
  }
  parts_->sink.finish(ctx_);
  mesh_.dp().all_reduce(ctx_, parts_->sums, ReduceOp::sum);
}

void Engine::set_profiler(OpProfiler* profiler) {
  queue_.set_overlap(ctx_, profiler == nullptr);
  tp_.set_overlap(ctx_, profiler == nullptr);
  ctx_.profiler = profiler;
}

void Engine::poison_gradients() {
  const auto poison = fault_.poison("gradients");
  if (!poison) return;
  const ParamLayout& layout = parts_->model.layout();
  bool known = false;
  for (ParamId id = 0; id < layout.num_params(); ++id) {
    if (!poison->tensor.empty() && layout.decl(id).name != poison->tensor) continue;
    known = true;
    const int block = layout.decl(id).block;
    const FlatRange shard = parts_->optimizer.range(block);
    const FlatRange here = intersect(layout.local(id).real_range(), shard);
    if (here.count == 0) continue;
    ops::fill(ctx_, {.x = parts_->sink.shard(block).flat_range(here.first - shard.first, 1), .value = poison->value});
    return;
  }
  if (!known)
    fail(ExitCode::config, "TRAINER_FAULT: the model has no tensor '{}'; it has '{}', for example", poison->tensor,
         layout.decl(0).name);
}

void Engine::step(const MicroBatchSource& source, std::int64_t step, double lr) {
  const TraceRange whole(ctx_, "step", step + 1);  // counted from 1, as in all that people read
  fault_.at("forward");
  compute_gradients(source, step);
  fault_.at("gradients");
  poison_gradients();
  const TraceRange range(ctx_, "optimizer");
  ops::fill(ctx_, {.x = parts_->norm.col_range(0, 1), .value = 0.0});
  ops::fill(ctx_, {.x = parts_->norm.col_range(1, 1), .value = std::numeric_limits<double>::infinity()});
  parts_->optimizer.accumulate_norm(ctx_, parts_->sink, parts_->norm);
  parts_->optimizer.reduce_norm(ctx_, mesh_, parts_->norm);
  ops::prepare_update(ctx_, {.state = device_state(),
                             .norm = parts_->norm,
                             .sums = parts_->sums,
                             .grad_scale = grad_scale_,
                             .clip_grad_norm = config_.optimizer.clip_grad_norm,
                             .scaling = uses_loss_scaling(config_.precision),
                             .scale = config_.precision.loss_scale});
  fault_.at("optimizer");
  parts_->optimizer.step(ctx_, *parts_->weights, parts_->sink, device_state(), lr);
  report_state();
}

void Engine::report_state() {
  Reported& slot = reported_[static_cast<std::size_t>(steps_queued_++) % reported_.size()];
  auto* const end = static_cast<StepEnd*>(slot.memory.get());
  copy_to_host(ctx_, &end->state, parts_->state.data, sizeof end->state);
  read_clock(ctx_, &end->seconds);
  slot.done.record(ctx_);
}

const StepEnd& Engine::wait_for(std::int64_t queued_step) {
  const Reported& slot = reported_[static_cast<std::size_t>(queued_step) % reported_.size()];
  slot.done.synchronize();
  return *static_cast<const StepEnd*>(slot.memory.get());
}

const StepEnd& Engine::end_of_step() {
  return wait_for(steps_queued_ - 1);
}

const StepEnd& Engine::end_of_previous_step() {
  return wait_for(steps_queued_ - 2);
}

const UpdateState& Engine::state() {
  return end_of_step().state;
}

void Engine::restore_state(const UpdateState& state) {
  copy_to_device(ctx_, parts_->state.data, &state, sizeof state);
  synchronize(ctx_);
  for (std::size_t slot = 0; slot < reported_.size(); ++slot) report_state();
}

Engine::Sums Engine::sums() {
  double sums[3];
  copy_to_host(ctx_, sums, parts_->sums.data, sizeof sums);
  synchronize(ctx_);
  return {sums[0], sums[1], sums[2]};
}

EvalResult Engine::evaluate(const MicroBatchSource& source, std::int64_t steps) {
  zero_sums();
  for (std::int64_t i = 0; i < steps * accumulation_steps(config_); ++i) {
    const Batch batch = upload(source());
    const Pass pass{.ctx = ctx_, .tp = tp_, .batch = batch, .dropout_key = 0, .dropout = false};
    parts_->model.evaluate(pass, *parts_->weights, parts_->sums);
  }
  mesh_.dp().all_reduce(ctx_, parts_->sums, ReduceOp::sum);
  const Sums total = sums();
  return {.loss = total.loss / total.target_tokens, .target_tokens = static_cast<std::int64_t>(total.target_tokens)};
}

void Engine::warm_up(const MicroBatch& micro_batch) {
  Communicator& world = mesh_.world();
  set_gemm_tuning(ctx_, world.rank() == 0 ? GemmTuning::time : GemmTuning::keep_pace);
  tp_.set_overlap(ctx_, false);  // products are timed alone
  zero_sums();
  const std::int64_t passes = std::min<std::int64_t>(2, accumulation_steps(config_));
  for (std::int64_t i = 0; i < passes; ++i) {  // the second adds to gradients where the first overwrites
    const Batch batch = upload(micro_batch);
    const Pass pass{.ctx = ctx_, .tp = tp_, .batch = batch, .dropout_key = 0, .dropout = true};
    parts_->sink.begin_micro_batch(i == 0, /*last=*/false);
    parts_->model.train(pass, *parts_->weights, parts_->sink, parts_->sums, grad_scale_, device_state());
  }
  tp_.set_overlap(ctx_, true);
  set_gemm_tuning(ctx_, GemmTuning::off);
  use_gemm_choices(ctx_, broadcast_string(world, gemm_choices(ctx_), 0));
}

}  // namespace trainer
