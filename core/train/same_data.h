// All ranks must see the same tokens, and so must a run that goes on: hosts may hold copies of a file that differ, and
// files may be replaced.
#pragma once
#include <string>

#include "data/token_shards.h"
#include "parallel/communicator.h"

namespace trainer {

/// Hash, as 16 hexadecimal digits, of tokens and loss masks at places that are spread over the first `tokens` of
/// `data`. How they are dealt to files and stored there does not matter. Throws Error(data) as TokenDataset::read.
std::string token_sample(const TokenDataset& data, std::int64_t tokens);

/// Compares sizes and a sample of the tokens with those of rank 0. `key` names the data in the configuration. Throws
/// Error(data) on all ranks, naming the first that differs. Collective over `world`.
void check_ranks_see_same_data(const TokenDataset& data, const std::string& key, Communicator& world);

}  // namespace trainer
