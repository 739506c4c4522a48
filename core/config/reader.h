// Reads the configuration: defaults, then files in order, then the environment, then --set. Strict: whatever is not
// understood is an error, and all errors are told at once.
#pragma once
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/config/config.h"

namespace trainer {

struct ConfigSources {
  std::vector<std::string> files;                                // later ones win
  std::vector<std::string> sets;                                 // "section.key=value", from --set
  std::vector<std::pair<std::string, std::string>> environment;  // variables and their values
  int world_size = 0;  // ranks of the job; 0: not known, and the checks that need it are left out
};

/// The path of a key or section -> "file:line:column", "environment NAME" or "--set ...". What nobody gave is not in
/// it.
using ConfigOrigins = std::map<std::string, std::string>;

/// The variables of this process that start with TRAINER_: those with TRAINER__ set a key, others are refused where
/// that is what they nearly do.
std::vector<std::pair<std::string, std::string>> config_environment();

/// Reads all sources and checks the result (validate.h). Throws one Error(config) with every fault (of hundreds the
/// first hundred), a line each:
/// "file:line:column: section.key: what (value 'x'); right would be ...; did you mean section.key".
/// Zeros that stand for a derived value stay zeros: see resolve.h.
Config read_config(const ConfigSources& sources, ConfigOrigins* origins = nullptr);

/// Reads one YAML text, strictly, but without the checks between keys. `name` stands for the file in messages.
Config config_from_yaml(std::string_view text, const std::string& name);

/// The complete configuration as YAML. Reads back to the same values, bit for bit.
std::string resolved_yaml(const Config& config);

/// The same with a comment on each line: where the value comes from.
std::string resolved_yaml_with_origins(const Config& config, const ConfigOrigins& origins);

}  // namespace trainer
