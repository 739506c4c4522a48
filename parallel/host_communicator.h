// Collectives on host memory over any transport. Only messages from rank to rank are used, so that the order of
// additions is ours, and so that waiting can end: at a timeout, when a rank has died, or when another rank has failed.
// docs/architecture.md.
#pragma once
#include <memory>
#include <string>

#include "parallel/job.h"

namespace trainer {

/// The ranks that `transport` connects. Collective.
std::unique_ptr<Communicator> make_host_communicator(std::unique_ptr<Transport> transport, const std::string& name,
                                                     const std::shared_ptr<JobRanks>& ranks,
                                                     const CommunicatorOptions& options);

}  // namespace trainer
