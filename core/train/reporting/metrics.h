// What is known about a step, and the two files that keep it: metrics.jsonl (here) and TensorBoard's (tensorboard.h).
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "core/train/reporting/append_file.h"

namespace trainer {

/// One step as the log sees it. Values of the whole job, the same in every layout, unless said. Optional fields are
/// left out of the files when they are empty.
struct StepRecord {
  std::int64_t step = 0;           // steps completed, this one included: 1 is the first
  std::int64_t tokens = 0;         // processed since step 0, with the batches of then
  std::int64_t target_tokens = 0;  // unmasked targets of this step: what the loss was averaged over
  double time = 0;                 // Unix time, seconds
  double loss = 0;                 // mean over target tokens, nats
  double lr = 0;
  double grad_norm = 0;              // before clipping
  std::optional<double> loss_scale;  // fp16 only
  bool skipped = false;              // gradients were not finite: weights unchanged
  std::optional<double> tokens_per_second;
  std::optional<double> step_ms;
  std::optional<double> tflops;        // model TFLOP/s of one device
  std::optional<double> mfu;           // share of the device's dense peak, 0 to 1; empty when the peak is not known
  std::optional<double> data_wait_ms;  // wait for the loader on rank 0 since the last record
  std::optional<double> eval_loss;     // nats a token; set when this step was followed by an evaluation
  std::optional<std::int64_t> eval_tokens;
};

/// Calls visit(json_key, tensorboard_tag, value) for every field of the record that is set, in file order: the one list
/// of metric names. Values are std::int64_t, double or bool. An empty tag: no curve in TensorBoard.
template <class Visit>
void for_each_metric(const StepRecord& r, Visit&& visit) {
  const auto optional = [&](const char* key, const char* tag, const auto& value) {
    if (value) visit(key, tag, *value);
  };
  visit("step", "", r.step);
  visit("tokens", "", r.tokens);
  visit("target_tokens", "", r.target_tokens);
  visit("time", "", r.time);
  visit("loss", "train/loss", r.loss);
  visit("lr", "train/lr", r.lr);
  visit("grad_norm", "train/grad_norm", r.grad_norm);
  optional("loss_scale", "train/loss_scale", r.loss_scale);
  visit("skipped", "train/skipped", r.skipped);
  optional("tokens_per_second", "perf/tokens_per_sec", r.tokens_per_second);
  optional("step_ms", "perf/step_ms", r.step_ms);
  optional("tflops", "perf/tflops", r.tflops);
  optional("mfu", "perf/mfu", r.mfu);
  optional("data_wait_ms", "data/wait_ms", r.data_wait_ms);
  optional("eval_loss", "eval/loss", r.eval_loss);
  optional("eval_tokens", "", r.eval_tokens);
}

/// The record as one line of JSON without the line end. Numbers that are not finite become null.
std::string to_json(const StepRecord& record);

/// Appends records to metrics.jsonl, one JSON object a line.
class MetricsWriter {
 public:
  /// Opens `path` for appending. A run that resumes after `completed_steps` steps repeats what an earlier attempt wrote
  /// beyond them, so lines of later steps, and torn or damaged lines, are removed first; 0 starts an empty file.
  /// Throws Error(other) when the file cannot be read or written.
  MetricsWriter(const std::string& path, std::int64_t completed_steps);

  /// One line, handed to the operating system at once, or kept until the file takes it.
  void append(const StepRecord& record) { file_.append(to_json(record) + "\n"); }
  AppendFile& file() { return file_; }

 private:
  AppendFile file_;
};

}  // namespace trainer
