// This process as one rank of an MPI job: start, end, and who the others are. The MPI library itself is named only in
// the .cc files; mpi_stub.cc stands in where there is none.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "core/runtime/fault.h"
#include "parallel/communicator.h"
#include "parallel/job_ranks.h"

namespace trainer {

struct CommunicatorOptions {
  /// A collective that waits longer throws.
  double timeout_seconds = 600;
  /// Planned faults: site "collective", action "count". May be null.
  const FaultPlan* fault = nullptr;
  /// Set when this process was asked to stop (SIGTERM, SIGUSR1). A launcher sends SIGTERM when a rank died, which on
  /// another host cannot be seen: from then on a collective waits stop_grace_seconds at most for ranks that cannot be
  /// watched. May be null.
  const std::atomic<bool>* stop = nullptr;
  double stop_grace_seconds = 60;
  /// Longest message. Longer tensors travel in pieces, which also bounds the memory that reductions need:
  /// size x piece_bytes.
  std::int64_t piece_bytes = 1 << 20;
};

class MpiJob {
 public:
  /// Starts MPI, which may take its own arguments out of argv. Throws Error(communication) when that fails,
  /// Error(config) when this build has no MPI. One object a process.
  MpiJob(int* argc, char*** argv);
  /// Finishes MPI; collective. Not while an exception passes through: the other ranks would be waited for.
  ~MpiJob();
  MpiJob(const MpiJob&) = delete;
  MpiJob& operator=(const MpiJob&) = delete;

  JobRanks& ranks() const { return *ranks_; }
  /// All ranks, as a new communicator. Collective.
  std::unique_ptr<Communicator> world(const CommunicatorOptions& options);
  /// The same for collectives on the memory of `device`, a GPU, too. `report` as in make_nccl_world.
  std::unique_ptr<Communicator> gpu_world(Device device, const CommunicatorOptions& options,
                                          std::function<void(const std::string&)> report);
  /// Ends all ranks; the launcher returns `exit_code`.
  [[noreturn]] void abort(int exit_code);

 private:
  struct Shared;  // memory that the ranks of a node share
  std::unique_ptr<Shared> shared_;
  std::shared_ptr<JobRanks> ranks_;
};

}  // namespace trainer
