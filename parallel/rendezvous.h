// How the ranks of a job find each other through a folder that all hosts see, without a launcher that knows them: rank
// 0 listens, and writes where into a file; the others read it and report there. docs/operations.md.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "parallel/job_ranks.h"
#include "parallel/socket.h"

namespace trainer {

struct RendezvousOptions {
  std::string folder;
  std::string job = "job";  // of jobs that share a folder at one time each needs its own
  int rank = 0;
  int size = 1;
  double timeout_seconds = 300;
  int port = 0;  // rank r listens on port + r; 0: where the system wants
};

/// What a rank says about itself. Exchanged between the ranks as bytes.
struct RendezvousMember {
  RankProcess process;       // node and local_rank are filled in by rank 0
  char memory[96] = {};      // ranks with the same text share memory
  char addresses[384] = {};  // of its host, separated by spaces
  std::int32_t port = 0;     // where it listens for the other ranks
};

struct Rendezvous {
  std::string nonce;                      // of this start: proves that a connection belongs to it
  std::vector<RendezvousMember> members;  // [size]
  Socket listener;                        // of this rank
  /// Rank 0: a line to every other rank (none to itself); the others: one line, to rank 0.
  std::vector<Socket> lines;
};

/// Collective. Throws Error(config) for a folder that cannot be used, a rank that is started twice and sizes that
/// differ, Error(communication) that names the ranks that are missing after the timeout, and when a rank ends
/// meanwhile.
Rendezvous meet(const RendezvousOptions& options);

/// Connects to the listener of `other`, whose host may be this one. None, and the reasons in `problem`.
Socket connect_to(const RendezvousMember& other, bool same_host, Deadline deadline, std::string& problem);

}  // namespace trainer
