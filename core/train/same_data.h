// All ranks must see the same tokens: hosts may hold copies of a file that differ.
#pragma once
#include <string>

#include "data/token_shards.h"
#include "parallel/communicator.h"

namespace trainer {

/// Compares sizes and a sample of the tokens with those of rank 0. `key` names the data in the configuration. Throws
/// Error(data) on all ranks, naming the first that differs. Collective over `world`.
void check_ranks_see_same_data(const TokenDataset& data, const std::string& key, Communicator& world);

}  // namespace trainer
