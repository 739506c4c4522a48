// From the command line to the configuration that all ranks share.
#pragma once
#include "core/config/config.h"
#include "core/config/reader.h"
#include "launch/bootstrap.h"
#include "launch/commands.h"

namespace trainer {

/// What a command does with training data. `none`: the configuration need not name any.
enum class DataUse : std::uint8_t { none, train };

/// Read, and checked for `world_size` ranks (0: not known).
Config given_config(const ConfigOptions& options, int world_size, DataUse data, ConfigOrigins* origins = nullptr);
/// The same, resolved.
Config resolved_config(const ConfigOptions& options, int world_size, DataUse data, ConfigOrigins* origins = nullptr);

/// Ranks that the parallel sizes of the configuration ask for; an automatic data-parallel size counts as one.
/// Throws Error(config) for more than kMostRanks.
int ranks_asked_for(const ConfigOptions& options, DataUse data);

/// Rank 0 reads the configuration and all ranks get its resolved text, so that no rank can see another file.
/// Collective over `world`.
Config shared_config(const ConfigOptions& options, const Bootstrap& bootstrap, Communicator& world, DataUse data);

/// What the configuration says of the communicators of a job.
CommunicatorOptions communicator_options(const CommConfig& config);

}  // namespace trainer
