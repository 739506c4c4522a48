// Messages over one TCP connection between each two ranks of a job.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "parallel/tcp_connection.h"
#include "parallel/transport.h"

namespace trainer {

/// [world size]; none to itself.
using TcpConnections = std::vector<std::unique_ptr<TcpConnection>>;

/// All ranks of the job as seen by world rank `rank`. `group`: the same number on all ranks, and another one for each
/// transport.
std::unique_ptr<Transport> make_tcp_transport(std::shared_ptr<const TcpConnections> connections, int rank,
                                              std::uint64_t group);

}  // namespace trainer
