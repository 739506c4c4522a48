// A command as a shell runs it, with everything that it starts: its output, its end, and the processes that it leaves.
#pragma once
#include <sys/types.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace trainer::launch_test {

using Environment = std::map<std::string, std::string>;

struct Result {
  int exit_code = -1;  // as a shell says it: 128 + N after signal N
  bool timed_out = false;
  std::string out;
  std::string err;
  double seconds = 0;
  std::int64_t peak_bytes = 0;  // resident memory of the largest process
};

class Job {
 public:
  /// Starts `command` with bash in `folder`; output goes to files there. The processes of the job are told from others
  /// by a variable in their environment.
  Job(const std::string& folder, const std::string& command, const Environment& environment);
  /// Kills what is left of the job.
  ~Job();
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  /// The command itself.
  pid_t pid() const { return pid_; }
  /// Waits for the end of the command; kills the whole job after `timeout_seconds`.
  Result wait(double timeout_seconds = 60);
  /// All living processes of the job, stopped ones included.
  std::vector<pid_t> processes() const;
  /// Those that are ranks of the trainer, by rank.
  std::map<int, pid_t> ranks() const;
  /// True when no process is left, now or within `seconds`.
  bool is_gone(double seconds = 3) const;
  void kill_all() const;

 private:
  std::string out_path_;
  std::string err_path_;
  std::string marker_;
  double started_ = 0;
  pid_t pid_ = -1;
  bool reaped_ = false;
};

double monotonic_seconds();
void sleep_seconds(double seconds);
/// Asks every few milliseconds until `condition()` holds; false when it does not within `seconds`.
template <class Condition>
bool wait_until(const Condition& condition, double seconds) {
  const double end = monotonic_seconds() + seconds;
  while (!condition()) {
    if (monotonic_seconds() > end) return false;
    sleep_seconds(0.003);
  }
  return true;
}

std::vector<std::string> lines_of(const std::string& text);
/// How often `part` occurs in `text`.
int count_of(const std::string& text, const std::string& part);

}  // namespace trainer::launch_test
