// What tests on several ranks share: the communicator of all ranks, made by the main program (mpi_main.cc).
#pragma once
#include <memory>

#include "parallel/communicator.h"
#include "parallel/job.h"

namespace trainer {

/// All ranks of the test. Every rank runs the same tests in the same order.
Communicator& test_world();

/// A new communicator of all ranks with its own options, for classes that take ownership. Collective.
std::unique_ptr<Communicator> new_test_world(const CommunicatorOptions& options = {.timeout_seconds = 60});

/// The same with the ranks as `ranks` sees them.
std::unique_ptr<Communicator> new_test_world(const std::shared_ptr<JobRanks>& ranks,
                                             const CommunicatorOptions& options = {.timeout_seconds = 60});

/// The same for collectives on the memory of `device` too.
std::unique_ptr<Communicator> new_test_world(Device device,
                                             const CommunicatorOptions& options = {.timeout_seconds = 60});

/// Place among the ranks of this host, and how many these are.
struct LocalPlace {
  int rank = 0;
  int size = 1;
};
LocalPlace test_local_place();

}  // namespace trainer
