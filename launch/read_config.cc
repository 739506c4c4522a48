#include "launch/read_config.h"

#include "core/config/reader.h"
#include "core/config/resolve.h"
#include "launch/build_id.h"
#include "parallel/host_exchange.h"

namespace trainer {
namespace {

/// Hosts may hold copies of the program that differ, and ranks of two programs go on for long before it shows.
void check_same_build(const Bootstrap& bootstrap, Communicator& world) {
  const std::vector<std::string> builds = gather_strings(world, build_id() + '\n' + bootstrap.host());
  const auto id_of = [&](std::size_t rank) { return builds[rank].substr(0, builds[rank].find('\n')); };
  const auto host_of = [&](std::size_t rank) { return builds[rank].substr(builds[rank].find('\n') + 1); };
  for (std::size_t rank = 1; rank < builds.size(); ++rank)
    if (id_of(rank) != id_of(0))
      fail(ExitCode::config, "rank {} (host {}) runs another build of trainer ({}) than rank 0 (host {}, {})", rank,
           host_of(rank), id_of(rank), host_of(0), id_of(0));
}

}  // namespace

Config resolved_config(const ConfigOptions& options, int world_size, DataUse data) {
  std::vector<std::string> sets = options.sets;
  if (data == DataUse::none) sets.insert(sets.end(), {"data.train=[none]", "data.validation=[]", "eval.interval=0"});
  Config config = read_config(
      {.files = options.files, .sets = sets, .environment = config_environment(), .world_size = world_size});
  resolve_defaults(config, world_size);
  return config;
}

Config shared_config(const ConfigOptions& options, const Bootstrap& bootstrap, Communicator& world, DataUse data) {
  check_same_build(bootstrap, world);
  std::string text;
  if (bootstrap.rank() == 0) text = resolved_yaml(resolved_config(options, bootstrap.size(), data));
  return config_from_yaml(broadcast_string(world, text, 0), "the configuration of rank 0");
}

}  // namespace trainer
