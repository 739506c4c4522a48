// Messages over MPI. Included by mpi_*.cc only.
#pragma once
#include <mpi.h>

#include <memory>

#include "parallel/transport.h"

namespace trainer {

/// Throws Error(communication) when an MPI call failed.
void check_mpi(int code, const char* call);

/// Takes over `comm`.
std::unique_ptr<Transport> make_mpi_transport(MPI_Comm comm);

}  // namespace trainer
