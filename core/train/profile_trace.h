// A window of steps as a picture: ops and parts of the step on the timelines of device and host.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "core/config/config.h"
#include "kernels/op_profiler.h"

namespace trainer {
class Engine;

/// The slices as JSON in Chrome's trace format (Perfetto reads it too): one process a rank; thread 0 is the device,
/// thread 1 the host that queued the work. Times in microseconds.
std::string chrome_trace(const std::vector<OpProfiler::Slice>& slices, int rank);

/// The window of the `profiler` section: it watches the engine through these steps, then writes the rank's file.
class ProfileWindow {
 public:
  ProfileWindow(const Config& config, Engine& engine, int rank);
  ~ProfileWindow();
  ProfileWindow(const ProfileWindow&) = delete;
  ProfileWindow& operator=(const ProfileWindow&) = delete;

  /// Steps count from 1. A run that resumes inside the window profiles what is left of it.
  void before_step(std::int64_t step);
  /// True when the file was written, which waits for the device. Throws Error(other) when it cannot be.
  bool after_step(std::int64_t step);
  const std::string& path() const { return path_; }

 private:
  const ProfilerConfig window_;
  Engine& engine_;
  int rank_;
  std::string path_;
  std::unique_ptr<OpProfiler> profiler_;  // inside the window only
};

}  // namespace trainer
