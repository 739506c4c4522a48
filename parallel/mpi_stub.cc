// Stands in for mpi_*.cc in a build without MPI.
#include "core/runtime/check.h"
#include "parallel/mpi_job.h"

namespace trainer {

std::unique_ptr<Job> join_mpi_job(int* /*argc*/, char*** /*argv*/) {
  fail(ExitCode::config,
       "a launcher started this process as one of several ranks, but this build has no MPI: name a folder that all "
       "ranks share in TRAINER_RENDEZVOUS, or install libopenmpi-dev and configure again, or start one process without "
       "the launcher");
}

}  // namespace trainer
