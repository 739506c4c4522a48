// The console's view of a running job: one line that is rewritten in a terminal, one log line an interval elsewhere.
#pragma once
#include <cstdint>
#include <cstdio>
#include <deque>
#include <optional>
#include <string>

#include "core/config/config.h"
#include "core/train/reporting/metrics.h"

namespace trainer {

/// How long the rest of a run will take: the median of the newest step times, so that a slow first step or a pause of
/// the machine counts for nothing.
class TimeLeft {
 public:
  void add(double step_ms);
  /// For `steps` more; empty when none is left, and before the first add().
  std::optional<double> seconds(std::int64_t steps) const;

 private:
  std::deque<double> newest_ms_;
};

/// "step 120/400 | loss 1.234 | ETA 1m 20s | 12.3k tok/s | 85.1 ms | lr 3.0e-04 | norm 0.91 | ..." for the log file and
/// for consoles without a progress line. `seconds_left`: empty when it is not known.
std::string step_line(const StepRecord& record, std::int64_t total_steps, std::optional<double> seconds_left);

/// "step 120/400  30% | loss 1.234 | ETA 1m 20s | ...", shortened to `width` columns by dropping fields from the right.
std::string progress_line(const StepRecord& record, std::int64_t total_steps, std::optional<double> seconds_left,
                          int width);

/// The terminal behind a stream, if there is one. Open MPI gives every rank a pseudo-terminal of its own, also when
/// mpirun writes to a file; there the launcher's own output decides.
struct Terminal {
  bool present = false;
  int width = 80;  // columns
};
Terminal find_terminal(int file_descriptor);

/// Rewrites one line on `out`. Does nothing when it is off.
class Progress {
 public:
  /// Used on rank 0.
  Progress(ProgressMode mode, std::FILE* out, std::int64_t total_steps);
  ~Progress() { clear(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// False: the caller writes step_line() to its log instead.
  bool on() const { return terminal_.present; }
  void update(const StepRecord& record, std::optional<double> seconds_left);
  /// Wipes the line, so that something else can be printed; the next update draws it again.
  void clear();

 private:
  std::FILE* out_;
  Terminal terminal_;
  std::int64_t total_steps_;
  bool drawn_ = false;
};

}  // namespace trainer
