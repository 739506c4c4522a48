// From a YAML value to a typed, checked value of the Config.
#pragma once
#include <string>

#include "core/config/schema.h"
#include "core/config/yaml.h"

namespace trainer {

/// Stores `node` as the value of the key `item` and returns an empty text; or leaves the value alone and returns what
/// is wrong and what would be right.
std::string store_value(const ConfigItem& item, const YamlNode& node);

/// "empty", "a single value", "a list" or "a map of keys".
const char* kind_text(const YamlNode& node);

}  // namespace trainer
