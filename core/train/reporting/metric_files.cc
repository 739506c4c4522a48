#include "core/train/reporting/metric_files.h"

#include <fmt/format.h>

#include "core/runtime/counted.h"

namespace trainer {

MetricFiles::MetricFiles(const std::string& output_dir, bool tensorboard, std::int64_t completed_steps)
    : metrics_(output_dir + "/metrics.jsonl", completed_steps) {
  if (tensorboard) tensorboard_.emplace(output_dir + "/tb", completed_steps);
}

std::vector<AppendFile*> MetricFiles::files() {
  std::vector<AppendFile*> all{&metrics_.file()};
  if (tensorboard_) all.push_back(&tensorboard_->file());
  return all;
}

std::string MetricFiles::append(const StepRecord& record) {
  metrics_.append(record);
  if (tensorboard_) {
    tensorboard_->append(record);
    tensorboard_->flush();
  }
  std::string problems;
  for (const AppendFile* file : files())
    if (!file->problem().empty())
      problems += fmt::format("{}'{}' ({})", problems.empty() ? "" : " and ", file->path(), file->problem());
  if (problems.empty() != refused_) return {};
  refused_ = !refused_;
  if (!refused_)
    return fmt::format("step {}: metrics can be written again; those that waited are in their files", record.step);
  return fmt::format(
      "step {}: cannot write metrics to {}. Training goes on, and the records wait in memory: make room, and they are "
      "written with the next ones. Nothing more is said until then; a checkpoint may not find room either",
      record.step, problems);
}

std::string MetricFiles::finish() {
  std::string lost;
  for (AppendFile* file : files()) {
    file->retry();
    if (file->missing() > 0)
      lost += fmt::format("{}{} in '{}'", lost.empty() ? "" : ", ", counted(file->missing(), "record"), file->path());
  }
  return lost.empty() ? lost : fmt::format("metrics are lost, because they could not be written: {}", lost);
}

}  // namespace trainer
