// This process as one rank of a job: who the others are, communicators over all of them, and how everything ends. MPI
// (mpi_job.h) or sockets (tcp_job.h) bring the ranks together.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "core/runtime/fault.h"
#include "parallel/communicator.h"
#include "parallel/job_ranks.h"
#include "parallel/transport.h"

namespace trainer {

/// Where copy engines begin to pay: one kernel of NCCL is sooner done with less.
inline constexpr std::int64_t kPeerCopyBytes = std::int64_t{1} << 20;
/// GPU memory of each group that they serve, taken at its first reduce_scatter.
inline constexpr std::int64_t kPeerScratchBytes = std::int64_t{256} << 20;

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
  /// Tensors of which each two GPUs of one host exchange at least this much go by their copy engines (nccl_peers.h); 0:
  /// none do.
  std::int64_t peer_copy_bytes = 0;
};

/// Carries out the faults that `fault` (may be null) plans for a collective of `count` elements. Returns the count to
/// use.
std::int64_t enter_collective(const FaultPlan* fault, std::int64_t count);

/// One object a process.
class Job {
 public:
  /// Leaves the job. Not while an exception passes through: the other ranks might be waited for.
  virtual ~Job() = default;
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  JobRanks& ranks() const { return *ranks_; }
  /// All ranks, as a new communicator. Collective.
  std::unique_ptr<Communicator> world(const CommunicatorOptions& options) { return world(options, ranks_); }
  /// The same with the ranks as `ranks` sees them: for tests.
  std::unique_ptr<Communicator> world(const CommunicatorOptions& options, const std::shared_ptr<JobRanks>& ranks);
  /// The same for collectives on the memory of `device`, a GPU, too. `report` as in make_nccl_world.
  std::unique_ptr<Communicator> gpu_world(Device device, const CommunicatorOptions& options,
                                          std::function<void(const std::string&)> report);
  /// Ends all ranks; the launcher returns `exit_code`.
  [[noreturn]] virtual void abort(int exit_code) = 0;

 protected:
  Job() = default;
  /// Messages between all ranks, apart from those of any other transport. Collective.
  virtual std::unique_ptr<Transport> transport() = 0;

  std::shared_ptr<JobRanks> ranks_;  // set by the constructors of the implementations
};

}  // namespace trainer
