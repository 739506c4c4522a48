// A job whose ranks find each other through a folder (rendezvous.h) and talk over TCP: for sites whose MPI and Slurm do
// not fit, and builds without MPI.
#pragma once
#include <memory>

#include "parallel/job.h"
#include "parallel/rendezvous.h"

namespace trainer {

/// Collective. Errors as meet(); Error(communication) as well when two ranks cannot connect.
std::unique_ptr<Job> join_tcp_job(const RendezvousOptions& options);

}  // namespace trainer
