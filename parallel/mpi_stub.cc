// Stands in for mpi_job.cc and mpi_communicator.cc in a build without MPI.
#include <cstdlib>

#include "parallel/mpi_job.h"

namespace trainer {

struct MpiJob::SharedWord {};

MpiJob::MpiJob(int* /*argc*/, char*** /*argv*/) {
  fail(ExitCode::config,
       "a launcher started this process as one of several ranks, but this build has no MPI: install libopenmpi-dev and "
       "configure again, or start one process without the launcher");
}

MpiJob::~MpiJob() = default;

std::unique_ptr<Communicator> MpiJob::world(const CommunicatorOptions& /*options*/) {
  return nullptr;
}

void MpiJob::abort(int exit_code) {
  std::_Exit(exit_code);
}

}  // namespace trainer
