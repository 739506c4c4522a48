#include "launch/read_config.h"

#include "core/config/reader.h"
#include "core/config/resolve.h"
#include "parallel/host_exchange.h"

namespace trainer {

Config resolved_config(const ConfigOptions& options, int world_size, DataUse data) {
  std::vector<std::string> sets = options.sets;
  if (data == DataUse::none) sets.insert(sets.end(), {"data.train=[none]", "data.validation=[]", "eval.interval=0"});
  Config config = read_config(
      {.files = options.files, .sets = sets, .environment = config_environment(), .world_size = world_size});
  resolve_defaults(config, world_size);
  return config;
}

Config shared_config(const ConfigOptions& options, const Bootstrap& bootstrap, Communicator& world, DataUse data) {
  std::string text;
  if (bootstrap.rank() == 0) text = resolved_yaml(resolved_config(options, bootstrap.size(), data));
  return config_from_yaml(broadcast_string(world, text, 0), "the configuration of rank 0");
}

}  // namespace trainer
