#include "core/train/bench.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <utility>

#include "core/runtime/median.h"
#include "core/runtime/rng.h"
#include "core/train/gemm_cache.h"
#include "core/train/reporting/throughput.h"

namespace trainer {
namespace {

using Clock = std::chrono::steady_clock;

/// Uniform random tokens, drawn beforehand, so that the host has nothing to do in a step.
class RandomTokens {
 public:
  RandomTokens(const Config& config, const Mesh& mesh) : shape_(loader_shape(config, mesh)) {
    const std::uint64_t seed = mix_key(static_cast<std::uint64_t>(config.train.seed), "bench");
    const std::uint64_t mine = mix_key(seed, static_cast<std::uint64_t>(shape_.dp_rank));
    for (std::size_t i = 0; i < batches_.size(); ++i)
      batches_[i] = draw(mix_key(mine, i), static_cast<std::uint64_t>(config.model.vocab_size));
  }

  /// The next micro-batch, from step 0 on.
  const MicroBatch& next() {
    const auto start = Clock::now();
    MicroBatch& batch = batches_[static_cast<std::size_t>(taken_) % batches_.size()];
    batch.step = taken_ / shape_.accumulation();
    batch.micro = taken_ % shape_.accumulation();
    batch.first_slot = (shape_.dp_rank * shape_.accumulation() + batch.micro) * shape_.micro_batch_size;
    ++taken_;
    wait_ms_ += std::chrono::duration<double, std::milli>(Clock::now() - start).count();
    return batch;
  }
  double wait_ms() const { return wait_ms_; }

 private:
  MicroBatch draw(std::uint64_t key, std::uint64_t vocab) const {
    MicroBatch batch;
    const std::int64_t tokens = shape_.micro_batch_size * shape_.seq_length;
    const auto token = [&](std::int64_t i) {
      return static_cast<std::int32_t>(mix_key(key, static_cast<std::uint64_t>(i)) % vocab);
    };
    for (std::int64_t i = 0; i < tokens; ++i) {
      batch.inputs.push_back(token(i));
      batch.targets.push_back(token(i + 1));
      batch.positions.push_back(static_cast<std::int32_t>(i % shape_.seq_length));
    }
    for (std::int64_t s = 0; s <= shape_.micro_batch_size; ++s)
      batch.sequence_starts.push_back(static_cast<std::int32_t>(s * shape_.seq_length));
    return batch;
  }

  LoaderShape shape_;
  std::array<MicroBatch, 2> batches_;
  std::int64_t taken_ = 0;
  double wait_ms_ = 0.0;
};

/// Steps of the benchmark, one after the other.
class Steps {
 public:
  explicit Steps(Engine& engine) : engine_(engine), tokens_(engine.config(), engine.mesh()) {}

  void warm_up() {
    RandomTokens probe(engine_.config(), engine_.mesh());
    const std::string warning = warm_up_remembering(engine_, probe.next());  // as a training run does
    if (!warning.empty()) fmt::print(stderr, "trainer: {}\n", warning);
  }
  /// Queues a step. A tiny learning rate: all the work of an update, and weights that stay what they were.
  void queue() {
    constexpr double kLearningRate = 1e-9;
    engine_.step([this]() -> const MicroBatch& { return tokens_.next(); }, step_++, kLearningRate);
  }
  void queue(std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) queue();
  }
  double wait_ms() const { return tokens_.wait_ms(); }

 private:
  Engine& engine_;
  RandomTokens tokens_;
  std::int64_t step_ = 0;
};

/// Milliseconds of each of `count` steps on the device.
std::vector<double> time_steps(const Context& ctx, Steps& steps, std::int64_t count) {
  std::vector<Event> marks;
  for (std::int64_t i = 0; i <= count; ++i) marks.emplace_back(ctx.device);
  marks.front().record(ctx);
  for (std::int64_t i = 0; i < count; ++i) {
    steps.queue();
    marks[static_cast<std::size_t>(i) + 1].record(ctx);
    if (i > 0) marks[static_cast<std::size_t>(i)].synchronize();  // as the trainer does: never far ahead of the device
  }
  marks.back().synchronize();
  std::vector<double> ms;
  for (std::size_t i = 1; i < marks.size(); ++i) ms.push_back(marks[i].milliseconds_since(marks[i - 1]));
  return ms;
}

/// The same steps with nothing communicated: weights and gradients are wrong, the work is the same.
double time_alone(Engine& engine, Steps& steps, std::int64_t count) {
  engine.skip_communication(true);
  steps.queue();
  const double ms = median(time_steps(engine.context(), steps, count));
  engine.skip_communication(false);
  engine.mesh().world().barrier();
  return ms;
}

void add_slices(const std::vector<OpProfiler::Slice>& slices, double weight, BenchResult& result) {
  std::map<std::pair<std::string, std::string>, OpTotal> totals;
  double ops_ms = 0.0, steps_ms = 0.0;
  for (const OpProfiler::Slice& slice : slices) {
    if (slice.depth == 0) steps_ms += slice.ms;
    if (!slice.is_op) continue;
    ops_ms += slice.ms;
    result.kind_ms[static_cast<std::size_t>(slice.cost.kind)] += weight * slice.ms;
    OpTotal& total = totals[{slice.name, slice.cost.shape}];
    total.name = slice.name;
    total.cost = slice.cost;
    total.calls += weight;
    total.ms += weight * slice.ms;
  }
  result.profiled_ms = weight * steps_ms;
  result.gap_ms = weight * (steps_ms - ops_ms);
  for (auto& [key, total] : totals) result.ops.push_back(std::move(total));
  std::stable_sort(result.ops.begin(), result.ops.end(),
                   [](const OpTotal& a, const OpTotal& b) { return a.ms > b.ms; });
}

/// Times the ops of some steps; returns the calls of one more.
std::vector<OpProfiler::Call> profile_steps(Engine& engine, Steps& steps, std::int64_t count, BenchResult& result) {
  OpProfiler profiler(engine.context());
  engine.set_profiler(&profiler);
  steps.queue();  // makes the profiler's events
  profiler.take_slices(engine.context());
  steps.queue(count);
  add_slices(profiler.take_slices(engine.context()), 1.0 / static_cast<double>(count), result);
  profiler.keep_calls();
  steps.queue();
  engine.set_profiler(nullptr);
  synchronize(engine.context());
  return profiler.take_calls();
}

double tokens_per_step(const Config& config) {
  return static_cast<double>(config.train.global_batch_size * config.train.seq_length);
}

/// Model TFLOP/s of one device at `ms` a step.
double model_tflops(Engine& engine, double ms) {
  const Config& config = engine.config();
  const double flops = tokens_per_step(config) * model_flops_per_token(config.model, config.train.seq_length) /
                       static_cast<double>(engine.mesh().world().size());
  return flops / (1e9 * ms);
}

std::optional<double> mfu(Engine& engine, const BenchDevice& device, double ms) {
  if (!device.peak_tflops) return std::nullopt;
  return model_tflops(engine, ms) / *device.peak_tflops;
}

}  // namespace

BenchResult run_bench(Engine& engine, const BenchOptions& options, const BenchDevice& device) {
  BenchResult result;
  const Context& ctx = engine.context();
  engine.initialize();
  Steps steps(engine);
  if (ctx.device.kind == DeviceKind::cuda) steps.warm_up();
  steps.queue(options.warmup_steps);
  synchronize(ctx);

  ClockMonitor monitor(device.pci_bus_id);
  const double waited = steps.wait_ms();
  result.step_ms = time_steps(ctx, steps, options.steps);
  result.clocks = monitor.mean_since_last();
  result.data_wait_ms = (steps.wait_ms() - waited) / static_cast<double>(options.steps);
  result.median_ms = median(result.step_ms);
  result.min_ms = *std::min_element(result.step_ms.begin(), result.step_ms.end());
  result.tokens_per_second = 1e3 * tokens_per_step(engine.config()) / result.median_ms;
  result.tflops = model_tflops(engine, result.median_ms);
  result.mfu = mfu(engine, device, result.median_ms);
  if (ctx.device.kind == DeviceKind::cuda)
    result.device_bytes = device.total_bytes - device_properties(ctx.device).free_bytes;

  if (engine.mesh().world().size() > 1) result.alone_ms = time_alone(engine, steps, options.steps);
  result.calls = profile_steps(engine, steps, options.profiled_steps, result);
  return result;
}

void add_floor(Engine& engine, double seconds, const BenchDevice& device, BenchResult& result) {
  ClockMonitor monitor(device.pci_bus_id);
  try {
    result.floor = replay_floor(engine.context(), result.calls, seconds);
  } catch (const Error& e) {
    if (e.code() != ExitCode::memory) throw;
    result.no_floor = e.what();
    return;
  }
  result.floor_mfu = mfu(engine, device, result.floor->median_ms);
  result.floor_clocks = monitor.mean_since_last();
}

}  // namespace trainer
