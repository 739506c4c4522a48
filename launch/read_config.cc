#include "launch/read_config.h"

#include <algorithm>

#include "core/config/resolve.h"
#include "parallel/host_exchange.h"

namespace trainer {

Config given_config(const ConfigOptions& options, int world_size, DataUse data, ConfigOrigins* origins) {
  std::vector<std::string> sets = options.sets;
  if (data == DataUse::none) sets.insert(sets.end(), {"data.train=[none]", "data.validation=[]", "eval.interval=0"});
  return read_config(
      {.files = options.files, .sets = sets, .environment = config_environment(), .world_size = world_size}, origins);
}

Config resolved_config(const ConfigOptions& options, int world_size, DataUse data, ConfigOrigins* origins) {
  Config config = given_config(options, world_size, data, origins);
  resolve_defaults(config, world_size);
  return config;
}

int ranks_asked_for(const ConfigOptions& options, DataUse data) {
  const ParallelismConfig sizes = given_config(options, /*world_size=*/0, data).parallelism;
  const std::int64_t ranks = sizes.tensor_parallel_size * std::max<std::int64_t>(1, sizes.data_parallel_size);
  if (ranks > kMostRanks)
    fail(ExitCode::config, "tensor_parallel_size {} x data_parallel_size {} asks for {} ranks; at most {} are planned",
         sizes.tensor_parallel_size, sizes.data_parallel_size, ranks, kMostRanks);
  return static_cast<int>(ranks);
}

Config shared_config(const ConfigOptions& options, const Bootstrap& bootstrap, Communicator& world, DataUse data) {
  std::string text;
  if (bootstrap.rank() == 0) text = resolved_yaml(resolved_config(options, bootstrap.size(), data));
  return config_from_yaml(broadcast_string(world, text, 0), "the configuration of rank 0");
}

CommunicatorOptions communicator_options(const CommConfig& config) {
  return {.timeout_seconds = config.timeout_seconds, .peer_copy_bytes = config.peer_copies ? kPeerCopyBytes : 0};
}

}  // namespace trainer
