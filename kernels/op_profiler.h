// What ran, when, for how long: named ranges over the ops and the parts of a step. Always there for NVIDIA's tools
// (NVTX, where the build has CUDA); timed by events, and ops kept for a replay, while the context has a profiler.
#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "core/runtime/device.h"
#include "kernels/traffic.h"

namespace trainer {

class OpProfiler {
 public:
  /// Times from now on, on ctx.stream.
  explicit OpProfiler(const Context& ctx);

  /// One range. Times in milliseconds since the profiler was made: on the device, and of the host that queued the work.
  struct Slice {
    const char* name = "";
    std::int64_t index = -1;  // number of a block, -1 where there is none
    int depth = 0;            // ranges around it
    bool is_op = false;
    OpCost cost;  // ops only
    double start_ms = 0.0, ms = 0.0;
    double host_start_ms = 0.0, host_ms = 0.0;
  };
  /// All ranges since the last call, in the order in which they began. Waits for the device.
  std::vector<Slice> take_slices(const Context& ctx);

  /// An op as it was called. Its tensors stay where they are while the engine lives, so that it can run again.
  struct Call {
    OpCost cost;
    std::function<void(const Context&)> run;
  };
  /// From now on the calls themselves are kept too.
  void keep_calls() { keeps_calls_ = true; }
  std::vector<Call> take_calls();

  // Called by TraceRange and by the dispatch of ops.
  void begin(const Context& ctx, const char* name, std::int64_t index);
  void end(const Context& ctx);
  /// The innermost open range is this op.
  template <class Args>
  void is_op(const Args& args, void (*op)(const Context&, const Args&)) {
    Open& slice = slices_[open_.back()];
    slice.what.is_op = true;
    slice.what.cost = ops::cost(args);
    if (keeps_calls_) calls_.push_back({slice.what.cost, [args, op](const Context& ctx) { op(ctx, args); }});
  }
  /// The innermost open range is a collective of `group` over `bytes`. It cannot run again alone, so it is not kept.
  void is_collective(std::int64_t bytes, const std::string& group);

 private:
  using Clock = std::chrono::steady_clock;
  struct Open {
    Slice what;
    std::size_t first_event = 0, last_event = 0;
  };
  std::size_t mark(const Context& ctx);
  double host_ms() const;

  Event start_;
  Clock::time_point host_start_;
  std::deque<Event> events_;  // reused from window to window
  std::size_t events_used_ = 0;
  std::vector<Open> slices_;
  std::vector<std::size_t> open_;  // indices into slices_, outermost first
  std::vector<Call> calls_;
  bool keeps_calls_ = false;
};

/// Names what is queued during its life. `name` is a literal.
class TraceRange {
 public:
  TraceRange(const Context& ctx, const char* name, std::int64_t index = -1);
  ~TraceRange();
  TraceRange(const TraceRange&) = delete;
  TraceRange& operator=(const TraceRange&) = delete;

 private:
  const Context& ctx_;
  OpProfiler* profiler_;
};

}  // namespace trainer
