// Small values of the host, exchanged through a Communicator: file names, decisions, counters. Collective over the
// group; meant for start, checkpoints and the end of a step, not for its inside (they allocate).
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "parallel/communicator.h"

namespace trainer {

/// `text` of `root`, on every rank.
std::string broadcast_string(Communicator& group, const std::string& text, int root);

/// The texts of all ranks in rank order, on every rank.
std::vector<std::string> gather_strings(Communicator& group, const std::string& text);

/// True on every rank when `yes` is true on every rank.
bool agree(Communicator& group, bool yes);

/// Sum, largest and smallest value over the ranks.
std::int64_t sum_over_ranks(Communicator& group, std::int64_t value);
std::int64_t max_over_ranks(Communicator& group, std::int64_t value);
std::int64_t min_over_ranks(Communicator& group, std::int64_t value);

}  // namespace trainer
