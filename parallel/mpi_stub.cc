// Stands in for mpi_job.cc and mpi_communicator.cc in a build without MPI.
#include <cstdlib>

#include "parallel/mpi_communicator.h"
#include "parallel/mpi_job.h"

namespace trainer {
namespace {

[[noreturn]] void refuse() {
  fail(ExitCode::config,
       "a launcher started this process as one of several ranks, but this build has no MPI: install libopenmpi-dev and "
       "configure again, or start one process without the launcher");
}

}  // namespace

struct MpiJob::Shared {};

MpiJob::MpiJob(int* /*argc*/, char*** /*argv*/) {
  refuse();
}

MpiJob::~MpiJob() = default;

std::unique_ptr<Communicator> MpiJob::world(const CommunicatorOptions& options) {
  return make_mpi_world(ranks_, options);
}

std::unique_ptr<Communicator> MpiJob::gpu_world(Device /*device*/, const CommunicatorOptions& options,
                                                std::function<void(const std::string&)> /*report*/) {
  return world(options);
}

void MpiJob::abort(int exit_code) {
  std::_Exit(exit_code);
}

std::unique_ptr<Communicator> make_mpi_world(const std::shared_ptr<JobRanks>& /*ranks*/,
                                             const CommunicatorOptions& /*options*/) {
  refuse();
}

}  // namespace trainer
