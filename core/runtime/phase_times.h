// Where the time between the start of a process and its first result goes.
#pragma once
#include <chrono>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace trainer {

/// Phases that follow each other without a gap. The first began with the process, before main().
class PhaseTimes {
 public:
  PhaseTimes();

  /// Ends the running phase, which gets this name; the next one begins.
  void end(std::string_view phase);
  /// Seconds since the process started.
  double seconds() const;
  /// "program 0.31 s, device 0.92 s": the phases that have ended, in order.
  std::string text() const;

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point process_start_, phase_start_;
  std::vector<std::pair<std::string, double>> phases_;  // name, seconds
};

}  // namespace trainer
