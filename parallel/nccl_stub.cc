// Stands in for nccl_*.cc in a build without NCCL.
#include "parallel/nccl_communicator.h"

namespace trainer {

// NOLINTBEGIN(performance-unnecessary-value-param): the other build takes them
std::unique_ptr<Communicator> make_nccl_world(std::unique_ptr<Communicator> /*host*/,
                                              std::shared_ptr<const JobRanks> /*ranks*/, Device /*device*/,
                                              const CommunicatorOptions& /*options*/, FailureReport /*report*/) {
  // NOLINTEND(performance-unnecessary-value-param)
  fail(ExitCode::config,
       "several GPUs need NCCL, and this build has none: install NCCL 2.18 or newer beside the CUDA toolkit and "
       "configure again, or start one rank");
}

std::string nccl_version() {
  return {};
}

}  // namespace trainer
