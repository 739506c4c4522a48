// From processes to ranks, and the one way out when something goes wrong: whatever ends one rank ends the job, its
// error is printed once, and the exit code reaches the shell.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "core/runtime/check.h"
#include "parallel/job.h"

namespace trainer {

class Bootstrap {
 public:
  /// Joins the job when the environment says that this process is one of several (launcher.h), through a shared folder
  /// or MPI; one process alone otherwise, without touching MPI. Collective. Throws Error(config) when a launcher is
  /// there that cannot be joined.
  Bootstrap(int* argc, char*** argv);

  /// Hosts may hold copies of the program that differ, and ranks of two programs go on for long before it shows. Throws
  /// Error(config) on all ranks.
  void check_builds() const;

  int rank() const { return job_ ? job_->ranks().rank() : 0; }
  int size() const { return job_ ? job_->ranks().size() : 1; }
  /// Place among the ranks of this host.
  int local_rank() const { return job_ ? job_->ranks().process(rank()).local_rank : 0; }
  /// How many ranks this host has.
  int local_size() const { return job_ ? job_->ranks().local_size() : 1; }
  const std::string& host() const { return host_; }
  /// The collective that this rank entered last: "all_reduce number 20 of group 'dp' (4096 bytes), not finished".
  std::string last_operation() const { return job_ ? job_->ranks().last_operation_text() : "none"; }

  /// The training step that runs, counted from 1, for reports; 0: none has begun.
  std::atomic<std::int64_t>& step() { return job_ ? job_->ranks().step() : own_step_; }
  /// Null: one process alone.
  Job* job() const { return job_.get(); }
  /// All ranks, as a new communicator. Collective.
  std::unique_ptr<Communicator> world(const CommunicatorOptions& options);

  /// The same for collectives on the memory of `device` too. When a collective hangs there, the job is failed from
  /// another thread.
  std::unique_ptr<Communicator> world(Device device, const CommunicatorOptions& options);

  /// Waits for all ranks and leaves the job; no communicator may be used afterwards. Collective.
  void finish();
  /// Reports `message` on stderr, unless another rank has already reported, and ends all ranks with `code`.
  [[noreturn]] void fail_job(const std::string& message, ExitCode code);

 private:
  std::string host_;
  std::atomic<std::int64_t> own_step_{0};  // of one process alone
  std::unique_ptr<Job> job_;               // null: one process alone
  std::unique_ptr<Communicator> control_;  // our own coming and going; null when job_ is
};

/// The body of main(): runs `run` and turns what it throws into a message and an exit code.
int run_reporting_errors(int argc, char** argv, const std::function<ExitCode(Bootstrap&)>& run);

}  // namespace trainer
