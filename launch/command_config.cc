#include "core/config/document.h"
#include "core/runtime/counted.h"
#include "launch/commands.h"
#include "launch/read_config.h"

namespace trainer {

ExitCode command_print_config(const ConfigOptions& options, int ranks) {
  if (ranks == 0) ranks = ranks_asked_for(options, DataUse::train);
  ConfigOrigins origins;
  const Config config = resolved_config(options, ranks, DataUse::train, &origins);
  fmt::print("# As for a job of {}.\n{}", counted(ranks, "rank"), resolved_yaml_with_origins(config, origins));
  return ExitCode::ok;
}

ExitCode command_config(const std::string& what, const std::string& section) {
  if (what == "docs")
    fmt::print("{}", config_markdown());
  else if (what == "schema")
    fmt::print("{}\n", config_json_schema());
  else
    fmt::print("{}", config_help(section));
  return ExitCode::ok;
}

}  // namespace trainer
