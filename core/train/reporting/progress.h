// The console's view of a running job: one line that is rewritten in a terminal, one log line an interval elsewhere.
#pragma once
#include <cstdint>
#include <cstdio>
#include <string>

#include "core/config/config.h"
#include "core/train/reporting/metrics.h"

namespace trainer {

/// "step 120/400 | loss 1.234 | lr 3.0e-04 | norm 0.91 | 12.3k tok/s | 85.1 ms | ..." for the log file and for consoles
/// without a progress line.
std::string step_line(const StepRecord& record, std::int64_t total_steps);

/// "step 120/400  30% | loss 1.234 | ... | ETA 1m 20s", shortened to `width` columns by dropping fields from the right.
/// `eta_seconds` < 0: not known yet.
std::string progress_line(const StepRecord& record, std::int64_t total_steps, double eta_seconds, int width);

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
  /// Used on rank 0. `completed_steps`: where this process starts, for the estimate of the time left. `now`: monotonic
  /// seconds.
  Progress(ProgressMode mode, std::FILE* out, std::int64_t completed_steps, std::int64_t total_steps, double now);
  ~Progress() { clear(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// False: the caller writes step_line() to its log instead.
  bool on() const { return terminal_.present; }
  void update(const StepRecord& record, double now);
  /// Wipes the line, so that something else can be printed; the next update draws it again.
  void clear();

 private:
  std::FILE* out_;
  Terminal terminal_;
  std::int64_t first_step_;
  std::int64_t total_steps_;
  double start_;
  bool drawn_ = false;
};

}  // namespace trainer
