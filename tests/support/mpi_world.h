// What tests on several ranks share: the communicator of all ranks, made by the main program (mpi_main.cc).
#pragma once
#include "parallel/communicator.h"

namespace trainer {

/// All ranks of the test. Every rank runs the same tests in the same order.
Communicator& test_world();

/// A new communicator of all ranks, for classes that take ownership. Collective.
inline std::unique_ptr<Communicator> new_test_world() {
  return test_world().split(0, test_world().rank(), "world");
}

}  // namespace trainer
