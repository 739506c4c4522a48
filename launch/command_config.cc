#include "core/config/document.h"
#include "core/config/reader.h"
#include "core/config/resolve.h"
#include "launch/commands.h"

namespace trainer {

ExitCode command_print_config(const ConfigOptions& options, int world_size) {
  ConfigOrigins origins;
  Config config = read_config(
      {.files = options.files, .sets = options.sets, .environment = config_environment(), .world_size = world_size},
      &origins);
  resolve_defaults(config, world_size);
  fmt::print("{}", resolved_yaml_with_origins(config, origins));
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
