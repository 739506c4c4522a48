// How fast the groups of a job communicate: what a step's communication can be measured against.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "core/runtime/context.h"
#include "parallel/mesh.h"

namespace trainer {

struct CommTime {
  std::string group, operation;
  int ranks = 0;
  std::int64_t bytes = 0;  // of the whole tensor: all_reduce: data; reduce_scatter: in; all_gather: out
  double ms = 0.0;         // mean of one, on rank 0
  /// bytes / time, in GB/s.
  double algorithm_rate() const;
  /// What each rank sends and receives in a ring / time, in GB/s, to be compared with the link's rate in one direction:
  /// 2 (n - 1) / n x bytes for an all_reduce of n ranks, (n - 1) / n x bytes for the others.
  double bus_rate() const;
};

/// All-reduce, all-gather and reduce-scatter of float32 over each group of more than one rank, each set of ranks once;
/// sizes from 64 KiB by factors of 4 up to `max_bytes`. Collective over the mesh's world. Takes twice max_bytes.
std::vector<CommTime> run_comm_bench(const Context& ctx, const Mesh& mesh, std::int64_t max_bytes);

std::string comm_report(const std::vector<CommTime>& times);
std::string comm_json(const std::vector<CommTime>& times);

}  // namespace trainer
