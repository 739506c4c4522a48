// The configuration as data: describe() of config.h walked once into a list, so that the reader, the dump, the help and
// the documentation are plain functions over that list.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "core/config/config.h"

namespace trainer {

/// An enum in a Config, seen as an index into its spellings.
struct EnumRef {
  unsigned char* index;
  std::span<const char* const> names;
};

/// Where a key's value lives in the Config.
using ValueRef = std::variant<bool*, std::int64_t*, double*, std::string*, std::vector<std::string>*, EnumRef>;

/// A section or a key.
struct ConfigItem {
  std::string path;  // "model.rope_scaling.factor"
  int depth = 0;     // dots in the path
  const char* doc = "";
  std::optional<ValueRef> value;  // none: a section
  Range range;
  bool required = false;

  bool is_section() const { return !value.has_value(); }
  std::string name() const { return path.substr(path.rfind('.') + 1); }  // npos + 1 == 0
  std::string section() const { return depth == 0 ? std::string() : path.substr(0, path.rfind('.')); }
};

/// All sections and keys in the order of their declaration; a section stands before its keys.
struct Schema {
  std::vector<ConfigItem> items;

  const ConfigItem* find(std::string_view path) const;
};

/// The schema of `config`. The values point into it: it must outlive the schema and stay where it is.
Schema schema_of(Config& config);

/// "integer", "number", "true or false", "text", "list of texts" or "choice".
std::string type_name(const ConfigItem& item);

/// What a key accepts, in words: "an integer at least 0", "one of adamw, sgd".
std::string expectation(const ConfigItem& item);

bool in_range(double value, const Range& range);

/// The range in words, empty where every value is allowed: "at least 0 and below 1". max_size and above count as no
/// limit.
std::string range_text(const Range& range);

/// The value as YAML: numbers so that they read back to the same bits, text in quotes where YAML would read it
/// otherwise.
std::string value_text(const ConfigItem& item);

/// A text as a YAML scalar: plain where no YAML reader takes it for something else, in double quotes otherwise.
std::string yaml_text(const std::string& text);

}  // namespace trainer
