#include "kernels/op_profiler.h"

#include <utility>

#include "kernels/nvtx.h"

namespace trainer {

OpProfiler::OpProfiler(const Context& ctx) : start_(ctx.device) {
  synchronize(ctx);  // so that both clocks start at the same moment
  start_.record(ctx);
  start_.synchronize();
  host_start_ = Clock::now();
}

double OpProfiler::host_ms() const {
  return std::chrono::duration<double, std::milli>(Clock::now() - host_start_).count();
}

std::size_t OpProfiler::mark(const Context& ctx) {
  if (events_used_ == events_.size()) events_.emplace_back(ctx.device);
  events_[events_used_].record(ctx);
  return events_used_++;
}

void OpProfiler::begin(const Context& ctx, const char* name, std::int64_t index) {
  Open slice;
  slice.what.name = name;
  slice.what.index = index;
  slice.what.depth = static_cast<int>(open_.size());
  slice.what.host_start_ms = host_ms();
  slice.first_event = mark(ctx);
  open_.push_back(slices_.size());
  slices_.push_back(std::move(slice));
}

void OpProfiler::end(const Context& ctx) {
  Open& slice = slices_[open_.back()];
  open_.pop_back();
  slice.last_event = mark(ctx);
  slice.what.host_ms = host_ms() - slice.what.host_start_ms;
}

void OpProfiler::is_collective(std::int64_t bytes, const std::string& group) {
  Slice& slice = slices_[open_.back()].what;
  slice.is_op = true;
  slice.cost = {.kind = OpKind::communication, .bytes = bytes, .shape = fmt::format("{}, {} bytes", group, bytes)};
}

std::vector<OpProfiler::Slice> OpProfiler::take_slices(const Context& ctx) {
  TRAINER_CHECK(open_.empty(), "the range '{}' is still open", slices_[open_.back()].what.name);
  synchronize(ctx);
  std::vector<Slice> done;
  for (Open& slice : slices_) {
    const Event& first = events_[slice.first_event];
    slice.what.start_ms = first.milliseconds_since(start_);
    slice.what.ms = events_[slice.last_event].milliseconds_since(first);
    done.push_back(std::move(slice.what));
  }
  slices_.clear();
  events_used_ = 0;
  return done;
}

std::vector<OpProfiler::Call> OpProfiler::take_calls() {
  keeps_calls_ = false;
  return std::exchange(calls_, {});
}

TraceRange::TraceRange(const Context& ctx, const char* name, std::int64_t index) : ctx_(ctx), profiler_(ctx.profiler) {
  nvtx::push(name, index);
  if (profiler_ != nullptr) profiler_->begin(ctx_, name, index);
}

TraceRange::~TraceRange() {
  if (profiler_ != nullptr) profiler_->end(ctx_);
  nvtx::pop();
}

}  // namespace trainer
