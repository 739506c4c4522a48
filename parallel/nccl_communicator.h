// Collectives on GPU memory over NCCL, queued in the stream of the context: no host waits for them. Host memory travels
// over the host communicator that was given (host_communicator.h), which also brings the ranks together. nccl_stub.cc
// stands in where there is no NCCL.
//
// Sums are added by NCCL, in the order that it chooses for a group, a size and a machine: the same from run to run, but
// not the rank order of the other communicators, and 16-bit sums may be rounded at each rank that they pass.
#pragma once
#include <functional>
#include <memory>
#include <string>

#include "parallel/communicator.h"
#include "parallel/job.h"

namespace trainer {

/// Called on a thread of its own when a collective hangs or a rank has gone; must end the process.
using FailureReport = std::function<void(const std::string& message)>;

/// The ranks of `host`, each with its own GPU (two on one card are refused by NCCL). Collective. Throws
/// Error(communication) when NCCL cannot connect them in time, Error(config) in a build without NCCL.
std::unique_ptr<Communicator> make_nccl_world(std::unique_ptr<Communicator> host, std::shared_ptr<const JobRanks> ranks,
                                              Device device, const CommunicatorOptions& options, FailureReport report);

/// "2.28.9"; empty in a build without NCCL.
std::string nccl_version();

}  // namespace trainer
