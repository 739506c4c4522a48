// The configuration explained: all of it comes from the descriptions in config.h.
#pragma once
#include <string>

namespace trainer {

/// docs/config.md: the rules of the file, then a table of keys for each section.
std::string config_markdown();

/// Help for the terminal. "": the sections; a section's path: its keys; a key's path: that key. Throws Error(config)
/// for a name that is none of these.
std::string config_help(const std::string& path);

/// A JSON Schema (draft 2020-12) of the file, by which editors complete and check it.
std::string config_json_schema();

}  // namespace trainer
