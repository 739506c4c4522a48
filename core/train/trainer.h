// The loop: data, learning rate, step, log, evaluation, checkpoints, signals.
#pragma once
#include <atomic>
#include <memory>
#include <optional>
#include <string>

#include "core/train/checkpointing.h"
#include "core/train/engine.h"
#include "core/train/folder_lock.h"
#include "core/train/inspect.h"
#include "core/train/reporting/metric_files.h"
#include "core/train/reporting/progress.h"
#include "core/train/reporting/tables.h"
#include "core/train/reporting/throughput.h"

namespace trainer {
class Log;
class PhaseTimes;

/// What launch knows about this process.
struct Launch {
  Context ctx;
  RankRow identity;      // tp and dp are filled in by the trainer
  std::string versions;  // for checkpoints
  std::optional<double> peak_tflops;
  const std::atomic<bool>& stop;    // set by a signal
  std::atomic<std::int64_t>& step;  // the one that runs, counted from 1: for reports
  PhaseTimes& startup;              // goes on until the first step is done
};

class Trainer {
 public:
  /// `config` is resolved and checked. Opens the data, plans and allocates, loads a checkpoint. Collective over
  /// `world`.
  Trainer(const Config& config, const Launch& launch, std::unique_ptr<Communicator> world, FaultPlan& fault, Log& log);
  ~Trainer();

  /// Trains to the last step, or until a signal. Returns ok or stopped; errors are thrown.
  ExitCode run();

 private:
  bool lead() const { return engine_.mesh().world().rank() == 0; }
  void open_run_folder();
  void open_save_folder();
  void write_resolved_config() const;
  void print_tables();
  void load();
  void warn_of_newer_checkpoint(const std::string& loaded);
  UpdateState state_to_go_on_with(const UpdateState& saved, const std::string& saved_yaml) const;
  void save();
  RunState run_state() const;
  std::int64_t tokens_per_step() const { return config_.train.global_batch_size * config_.train.seq_length; }
  /// Processed by the first `step` steps, in this process and before.
  std::int64_t tokens_until(std::int64_t step) const;
  /// Reports finished steps up to `through`, in order.
  void settle(std::int64_t through);
  void report_skip(std::int64_t step, const UpdateState& state);
  void report(std::int64_t step, const UpdateState& state);
  void report_start();
  void report_faults();
  void warm_up();
  std::int64_t evaluation_steps() const;
  void evaluate();
  bool stop_agreed();

  Config config_;
  const Launch& launch_;
  FaultPlan& fault_;
  Log& log_;
  PrintRequests print_;
  TokenDataset train_data_;
  std::optional<TokenDataset> validation_data_;
  std::int64_t train_windows_;
  std::int64_t validation_windows_;  // 0 without validation data
  std::string train_sample_;
  std::int64_t total_steps_;
  mutable Engine engine_;
  std::optional<FolderLock> lock_, save_lock_;  // rank 0: of the run folder, and of where it saves

  std::int64_t step_ = 0;                             // steps queued; on the CPU, and after settle(step_), done
  std::int64_t settled_ = 0;                          // steps that were reported
  std::int64_t loaded_step_ = 0, loaded_tokens_ = 0;  // where the checkpoint was; batches were others, perhaps
  bool start_reported_ = false;
  std::int64_t saved_step_ = -1;  // step of the newest checkpoint of this process
  std::optional<EvalResult> last_eval_;
  std::unique_ptr<Loader> loader_;
  std::unique_ptr<MetricFiles> metric_files_;
  std::unique_ptr<Progress> progress_;
  std::unique_ptr<ThroughputMeter> meter_;
  TimeLeft time_left_;
  double data_wait_ = 0;  // loader's wait, as of the last record
};

}  // namespace trainer
