// Collectives over MPI on host memory. Only point-to-point MPI is used, so that the order of additions is ours, and so
// that waiting can end: at a timeout, when a rank has died, or when another rank has failed. docs/architecture.md.
#pragma once
#include <memory>

#include "parallel/communicator.h"
#include "parallel/mpi_job.h"

namespace trainer {

/// All ranks of the job. Collective. MPI must have been started (MpiJob).
std::unique_ptr<Communicator> make_mpi_world(const std::shared_ptr<JobRanks>& ranks,
                                             const CommunicatorOptions& options);

}  // namespace trainer
