#include "parallel/job.h"

#include <utility>

#include "parallel/host_communicator.h"
#include "parallel/nccl_communicator.h"

namespace trainer {

std::int64_t enter_collective(const FaultPlan* fault, std::int64_t count) {
  if (fault == nullptr) return count;
  fault->at("collective");
  return fault->wrong_count() && count > 0 ? count - 1 : count;
}

std::unique_ptr<Communicator> Job::world(const CommunicatorOptions& options, const std::shared_ptr<JobRanks>& ranks) {
  return make_host_communicator(transport(), "world", ranks, options);
}

std::unique_ptr<Communicator> Job::gpu_world(Device device, const CommunicatorOptions& options,
                                             std::function<void(const std::string&)> report) {
  return make_nccl_world(world(options), ranks_, device, options, std::move(report));
}

}  // namespace trainer
