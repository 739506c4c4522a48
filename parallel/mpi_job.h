// A job that mpirun, or srun with PMIx, has started. The MPI library itself is named only in the .cc files;
// mpi_stub.cc stands in where there is none.
#pragma once
#include <memory>

#include "parallel/job.h"

namespace trainer {

/// Starts MPI, which may take its own arguments out of argv. Throws Error(communication) when that fails, Error(config)
/// when this build has no MPI. Collective, as is the end of the job.
std::unique_ptr<Job> join_mpi_job(int* argc, char*** argv);

}  // namespace trainer
