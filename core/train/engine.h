// All that one rank holds in order to train: model, weights, gradients, optimizer state, in memory that was planned
// first. One training step and one evaluation; no files, no log, no schedule (trainer.h has those).
#pragma once
#include <functional>
#include <memory>

#include "core/config/config.h"
#include "core/model/transformer.h"
#include "core/runtime/fault.h"
#include "data/loader.h"
#include "optim/optimizer.h"
#include "parallel/mesh.h"

namespace trainer {

/// Where micro-batches come from: the next one of this rank. A Loader, as a rule.
using MicroBatchSource = std::function<const MicroBatch&()>;

/// Loss of an evaluation over all ranks.
struct EvalResult {
  double loss = 0.0;  // mean over target tokens, nats
  std::int64_t target_tokens = 0;
};

class Engine {
 public:
  /// `config` is resolved and checked for world.size(). Allocates everything; throws Error(memory) when it does not
  /// fit. Weights are zero until initialize() or a checkpoint is loaded.
  Engine(const Config& config, Context ctx, std::unique_ptr<Communicator> world, const FaultPlan& fault);

  /// Weights of a new run: drawn from the seed by global element index.
  void initialize();

  /// One step over `accumulation` micro-batches of `source`. Returns the decision and the figures of the step.
  const UpdateState& step(const MicroBatchSource& source, std::int64_t step, double lr);

  /// Forward and backward only: gradients of one step, reduced over ranks, stored as sink().shard(): scaled by
  /// loss_scale / (global batch x T). step() is this and the update.
  void compute_gradients(const MicroBatchSource& source, std::int64_t step);

  /// Mean loss over `steps` global batches of `source`. Touches no training state.
  EvalResult evaluate(const MicroBatchSource& source, std::int64_t steps);

  const Config& config() const { return config_; }
  const Context& context() const { return ctx_; }
  Mesh& mesh() { return mesh_; }
  const MemoryPlan& memory_plan() const { return plan_; }
  const std::vector<Arena::Buffer>& largest_buffers() const { return largest_; }
  const Transformer& model() const { return parts_->model; }
  WeightSource& weights() { return parts_->weights; }
  GradSink& sink() { return parts_->sink; }
  Optimizer& optimizer() { return parts_->optimizer; }
  /// Loss, z-loss and target tokens of the last compute_gradients() or evaluate(), summed over all ranks.
  const double* sums() const { return parts_->sums.as<double>(); }
  UpdateState& update_state() { return state_; }
  const TensorParallel& tensor_parallel() const { return tp_; }

  /// Called with every training micro-batch before it is computed.
  void observe(std::function<void(const MicroBatch&)> observer) { observer_ = std::move(observer); }

  /// Copies a micro-batch to the device. The result is valid until the next upload.
  Batch upload(const MicroBatch& micro_batch) const;

 private:
  struct Parts {
    Parts(const Config& config, const Mesh& mesh, Arena& arena);
    Transformer model;
    ResidentWeights weights;
    ReducingGradSink sink;
    Optimizer optimizer;
    Batch batch;  // device copies of a micro-batch
    Tensor sums;  // [1, 3] f64: loss, z-loss, target tokens of this rank, then of all
    Tensor norm;  // [1, 2] f64: sum of squares, first bad tensor
  };
  void zero_sums();
  void poison_gradients();

  Config config_;
  Context ctx_;
  const FaultPlan& fault_;
  Mesh mesh_;
  TensorParallel tp_;
  double grad_scale_;
  MemoryPlan plan_{};
  std::vector<Arena::Buffer> largest_;
  std::unique_ptr<Arena> arena_;
  std::unique_ptr<Parts> parts_;
  UpdateState state_;
  std::function<void(const MicroBatch&)> observer_;
};

/// The mesh that a resolved configuration asks for.
MeshShape mesh_shape(const Config& config);
/// How the loader of this rank deals the global batch.
LoaderShape loader_shape(const Config& config, const Mesh& mesh);

}  // namespace trainer
