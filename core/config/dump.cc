#include <fmt/format.h>

#include "core/config/reader.h"
#include "core/config/schema.h"
#include "core/config/yaml.h"

namespace trainer {
namespace {

/// Each item as a line of YAML; `comment(index)` follows a key's value.
template <class Comment>
std::string dump(const Schema& schema, Comment comment) {
  std::string text;
  for (std::size_t i = 0; i < schema.items.size(); ++i) {
    const ConfigItem& item = schema.items[i];
    text.append(static_cast<std::size_t>(item.depth) * 2, ' ');
    text += item.name() + ":";
    if (!item.is_section()) text += fmt::format(" {}{}", value_text(item), comment(i));
    text += '\n';
  }
  return text;
}

}  // namespace

std::string resolved_yaml(const Config& config) {
  Config copy = config;
  return dump(schema_of(copy), [](std::size_t) { return std::string(); });
}

std::string resolved_yaml_with_origins(const Config& config, const ConfigOrigins& origins) {
  Config copy = config;
  Config defaults;
  const Schema schema = schema_of(copy);
  const Schema default_schema = schema_of(defaults);
  return dump(schema, [&](std::size_t i) {
    const ConfigItem& item = schema.items[i];
    const auto origin = origins.find(item.path);
    if (origin != origins.end()) return fmt::format("  # {}", printable(origin->second, 200));
    const bool is_default = value_text(item) == value_text(default_schema.items[i]);
    return std::string(is_default ? "  # default" : "  # derived");
  });
}

}  // namespace trainer
