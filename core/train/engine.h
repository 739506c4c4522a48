// All that one rank holds in order to train: model, weights, gradients, optimizer state, in memory that was planned
// first. One training step and one evaluation; no files, no log, no schedule (trainer.h has those).
#pragma once
#include <array>
#include <functional>
#include <memory>

#include "core/config/config.h"
#include "core/runtime/device.h"
#include "core/runtime/fault.h"
#include "core/train/engine_parts.h"
#include "core/train/plan.h"
#include "data/loader.h"

namespace trainer {

/// Where micro-batches come from: the next one of this rank. A Loader, as a rule.
using MicroBatchSource = std::function<const MicroBatch&()>;

/// Loss of an evaluation over all ranks.
struct EvalResult {
  double loss = 0.0;  // mean over target tokens, nats
  std::int64_t target_tokens = 0;
};

/// How a step ended.
struct StepEnd {
  UpdateState state;   // what was decided, and figures
  double seconds = 0;  // clock_seconds() at that moment, however late the host looks
};

class Engine {
 public:
  /// `config` is resolved and checked for world.size(). Allocates everything; throws Error(memory) when it does not
  /// fit, on a GPU before it has taken any. Weights are zero until initialize() or a checkpoint is loaded.
  Engine(const Config& config, Context ctx, std::unique_ptr<Communicator> world, const FaultPlan& fault);

  /// While an exception passes, ends what the GPU still waits for: memory could not be freed before.
  ~Engine();

  /// Weights of a new run: drawn from the seed by global element index.
  void initialize();

  /// Runs micro-batches forward and backward without an update, so that GEMM algorithms are timed and attention plans
  /// built before the first step. Rank 0's choices are taken by all ranks. Nothing is left behind but these.
  void warm_up(const MicroBatch& micro_batch);

  /// Queues one step over `accumulation` micro-batches of `source`. On a GPU the host does not wait: state() does.
  void step(const MicroBatchSource& source, std::int64_t step, double lr);

  /// Forward and backward only: gradients of one step, reduced over ranks, stored as sink().shard(): scaled by
  /// loss_scale / (global batch x T). step() is this and the update.
  void compute_gradients(const MicroBatchSource& source, std::int64_t step);

  /// Mean loss over `steps` global batches of `source`. Touches no training state.
  EvalResult evaluate(const MicroBatchSource& source, std::int64_t steps);

  const Config& config() const { return config_; }
  const Context& context() const { return ctx_; }
  Mesh& mesh() { return mesh_; }
  /// What was planned before it was allocated.
  const MemoryEstimate& memory_estimate() const { return estimate_; }
  /// Bytes of each class that were taken.
  const MemoryPlan& memory_taken() const { return arena_->plan(); }
  const Transformer& model() const { return parts_->model; }
  WeightSource& weights() { return *parts_->weights; }
  GradSink& sink() { return parts_->sink; }
  Optimizer& optimizer() { return parts_->optimizer; }
  /// How the newest step ended, once it has.
  const StepEnd& end_of_step();
  /// The same of the step before it: while the newest runs, the host need not wait for this.
  const StepEnd& end_of_previous_step();
  const UpdateState& state();  // of end_of_step()
  /// Where a run goes on: the state that a checkpoint holds.
  void restore_state(const UpdateState& state);

  struct Sums {
    double loss = 0.0, z_loss = 0.0, target_tokens = 0.0;
  };
  /// Of the last compute_gradients() or evaluate(), over all ranks.
  Sums sums();
  TensorParallel& tensor_parallel() { return tp_; }

  /// Called with every training micro-batch before it is computed.
  void observe(std::function<void(const MicroBatch&)> observer) { observer_ = std::move(observer); }

  /// Times everything that is computed from now on; null: nothing. What is timed runs one after the other,
  /// communication too.
  void set_profiler(OpProfiler* profiler);

  /// True: nothing is communicated from now on, to measure what that saves. The same on all ranks; results are wrong
  /// from then on.
  void skip_communication(bool skip) { *skips_ = skip; }

  /// Copies a micro-batch to the device. The result is valid until the next upload.
  Batch upload(const MicroBatch& micro_batch) const;

 private:
  UpdateState* device_state() const { return static_cast<UpdateState*>(parts_->state.data); }
  const StepEnd& wait_for(std::int64_t queued_step);
  void report_state();
  void zero_sums();
  void poison_gradients();

  Config config_;
  Context ctx_;
  const FaultPlan& fault_;
  std::shared_ptr<bool> skips_ = std::make_shared<bool>(false);
  Mesh mesh_;
  TensorParallel tp_;
  CommQueue queue_;
  double grad_scale_;
  MemoryEstimate estimate_;
  std::unique_ptr<Arena> arena_;
  std::unique_ptr<EngineParts> parts_;
  /// Of the last two steps, filled in the order of the stream.
  struct Reported {
    std::shared_ptr<void> memory;  // a StepEnd
    Event done;
  };
  std::array<Reported, 2> reported_;
  std::int64_t steps_queued_ = 0;
  /// Host copies of micro-batches on their way to the device.
  struct Staging {
    std::shared_ptr<void> memory;
    Event copied;
  };
  mutable std::array<Staging, 2> staging_;
  mutable std::size_t uploads_ = 0;
  std::function<void(const MicroBatch&)> observer_;
};

/// How the loader of this rank deals the global batch.
LoaderShape loader_shape(const Config& config, const Mesh& mesh);

}  // namespace trainer
