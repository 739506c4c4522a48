#include "core/train/profile_trace.h"

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/runtime/check.h"
#include "core/train/engine.h"

namespace trainer {
namespace {

using Json = nlohmann::ordered_json;

enum Thread : int { kDevice = 0, kHost = 1 };

Json name_of(const char* what, int rank, int thread, const std::string& name) {
  return {{"name", what}, {"ph", "M"}, {"pid", rank}, {"tid", thread}, {"args", {{"name", name}}}};
}

Json complete_event(const OpProfiler::Slice& slice, int rank, Thread thread) {
  const bool device = thread == kDevice;
  Json event = {{"name", slice.index < 0 ? std::string(slice.name) : fmt::format("{} {}", slice.name, slice.index)},
                {"cat", slice.is_op ? op_kind_name(slice.cost.kind) : "range"},
                {"ph", "X"},
                {"ts", 1e3 * (device ? slice.start_ms : slice.host_start_ms)},
                {"dur", 1e3 * (device ? slice.ms : slice.host_ms)},
                {"pid", rank},
                {"tid", static_cast<int>(thread)}};
  if (slice.is_op)
    event["args"] = {{"shape", slice.cost.shape}, {"bytes", slice.cost.bytes}, {"flops", slice.cost.flops}};
  return event;
}

}  // namespace

std::string chrome_trace(const std::vector<OpProfiler::Slice>& slices, int rank) {
  Json events = Json::array();
  events.push_back(name_of("process_name", rank, kDevice, fmt::format("rank {}", rank)));
  events.push_back(name_of("thread_name", rank, kDevice, "device"));
  events.push_back(name_of("thread_name", rank, kHost, "host"));
  for (const OpProfiler::Slice& slice : slices)
    for (const Thread thread : {kDevice, kHost}) events.push_back(complete_event(slice, rank, thread));
  return Json{{"traceEvents", std::move(events)}, {"displayTimeUnit", "ms"}}.dump();
}

ProfileWindow::ProfileWindow(const Config& config, Engine& engine, int rank)
    : window_(config.profiler),
      engine_(engine),
      rank_(rank),
      path_(fmt::format("{}/traces/rank-{:04}.json", config.train.output_dir, rank)) {}

ProfileWindow::~ProfileWindow() {
  if (profiler_) engine_.set_profiler(nullptr);
}

void ProfileWindow::before_step(std::int64_t step) {
  const bool inside = step >= window_.start_step && step < window_.start_step + window_.num_steps;
  if (!inside || profiler_) return;
  profiler_ = std::make_unique<OpProfiler>(engine_.context());
  engine_.set_profiler(profiler_.get());
}

bool ProfileWindow::after_step(std::int64_t step) {
  if (!profiler_ || step + 1 < window_.start_step + window_.num_steps) return false;
  engine_.set_profiler(nullptr);
  const std::string trace = chrome_trace(profiler_->take_slices(engine_.context()), rank_);
  profiler_.reset();
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(path_).parent_path(), error);
  std::ofstream file(path_, std::ios::binary | std::ios::trunc);
  file << trace << '\n';
  if (!file.flush()) fail(ExitCode::other, "cannot write the trace '{}'", path_);
  return true;
}

}  // namespace trainer
