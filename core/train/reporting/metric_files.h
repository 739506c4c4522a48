// The files that keep the records of a run: metrics.jsonl and, when wanted, TensorBoard's. Losing them loses no work,
// so a file that refuses records does not end a run.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "core/train/reporting/metrics.h"
#include "core/train/reporting/tensorboard.h"

namespace trainer {

class MetricFiles {
 public:
  /// Opens them in `output_dir`. Throws Error(other) when they cannot be opened, or made ready for a run that goes on
  /// after `completed_steps`.
  MetricFiles(const std::string& output_dir, bool tensorboard, std::int64_t completed_steps);

  /// Returns what the user should hear, as a rule nothing: once when a file begins to refuse records, which are kept
  /// from then on, and once when it has taken them all.
  std::string append(const StepRecord& record);
  /// The last try. Returns how many records are lost and where, or nothing.
  std::string finish();

 private:
  std::vector<AppendFile*> files();

  MetricsWriter metrics_;
  std::optional<TensorBoardWriter> tensorboard_;
  bool refused_ = false;
};

}  // namespace trainer
