// What the environment says about who started this process, and as which rank.
#pragma once
#include <optional>

#include "parallel/rendezvous.h"

namespace trainer {

/// How to meet the other ranks through a shared folder: when TRAINER_RENDEZVOUS names one and a launcher, or the user
/// in TRAINER_RANK and TRAINER_WORLD_SIZE, numbers this process as one of several. Throws Error(config) for numbers
/// that make no sense.
std::optional<RendezvousOptions> rendezvous_options();

/// A launcher of MPI ranks (mpirun, srun with PMIx) started this process. Throws Error(config) when srun has started
/// several that cannot find each other.
bool launched_by_mpi();

/// Ranks that the launcher of MPI ranks says it started; 0: it says nothing.
int ranks_of_launcher();

}  // namespace trainer
