#include "core/config/reader.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>

#include "core/config/schema.h"
#include "core/config/spelling.h"
#include "core/config/validate.h"
#include "core/config/value.h"
#include "core/config/yaml.h"
#include "core/config/yaml_guard.h"
#include "core/runtime/check.h"

namespace trainer {
namespace {

constexpr std::size_t max_faults = 100;  // enough to correct a file, and no flood
constexpr std::string_view environment_prefix = "TRAINER__";
constexpr std::string_view our_prefix = "TRAINER_";  // of other variables, and of misspelt ones

/// The text of a configuration file; of a longer one only so much that the guard sees its size.
std::string read_file(const std::string& path) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  if (!std::filesystem::exists(status)) {
    fail(ExitCode::config, "{}: cannot be read: {}", path, error ? error.message() : "no such file");
  }
  if (std::filesystem::is_directory(status)) {
    fail(ExitCode::config, "{}: is a folder; right would be a YAML file", path);
  }
  if (!std::filesystem::is_regular_file(status)) {
    fail(ExitCode::config, "{}: is not a regular file; right would be a YAML file", path);
  }
  errno = 0;
  std::ifstream stream(path, std::ios::binary);
  if (!stream) fail(ExitCode::config, "{}: cannot be read: {}", path, std::strerror(errno));
  std::string text(max_yaml_bytes + 1, '\0');
  stream.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (stream.bad()) fail(ExitCode::config, "{}: cannot be read: {}", path, std::strerror(errno));
  text.resize(static_cast<std::size_t>(stream.gcount()));
  return text;
}

std::string_view trimmed(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

/// "MODEL__ROPE_SCALING__FACTOR" -> "model.rope_scaling.factor".
std::string path_of_variable(std::string_view name) {
  std::string path;
  for (std::size_t i = 0; i < name.size(); ++i) {
    const bool dot = name[i] == '_' && i + 1 < name.size() && name[i + 1] == '_';
    path += dot ? '.' : name[i] >= 'A' && name[i] <= 'Z' ? static_cast<char>(name[i] - 'A' + 'a') : name[i];
    if (dot) ++i;
  }
  return path;
}

/// The inverse, with the prefix.
std::string variable_of(const std::string& path) {
  std::string name(environment_prefix);
  for (const char c : path) {
    if (c == '.')
      name += "__";
    else
      name += c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  }
  return name;
}

std::string with_single_underscores(std::string text) {
  const auto both = [](char a, char b) { return a == '_' && b == '_'; };
  text.erase(std::unique(text.begin(), text.end(), both), text.end());
  return text;
}

/// Reads sources into the Config behind a schema, and gathers what is wrong with them.
class Reader {
 public:
  explicit Reader(const Schema& schema) : schema_(schema) {}

  void file(const std::string& path) {
    try {
      text(read_file(path), printable(path, 200));
    } catch (const Error& e) {
      broken(e.what());
    }
  }

  void text(std::string_view text, const std::string& name) {
    name_ = name;
    where_.clear();
    try {
      const YamlNode root = parse_yaml(text, name);
      if (root.kind == YamlNode::Kind::null) {
        fail(ExitCode::config, "{}: is empty; right would be sections and keys (trainer --help)", name);
      }
      if (root.kind != YamlNode::Kind::map) {
        fail(ExitCode::config, "{}:{}:{}: is {}; right would be sections with keys, 'model:' and so on", name,
             root.place.line, root.place.column, kind_text(root));
      }
      section("", root);
    } catch (const Error& e) {
      broken(e.what());
    }
  }

  /// A value for `path` from the environment or the command line.
  void setting(const std::string& where, const std::string& path, std::string_view value) {
    where_ = printable(where, 200);
    const ConfigItem* item = schema_.find(path);
    if (item == nullptr) return unknown(Place{}, path);
    try {
      assign(*item, inline_node(*item, value));
    } catch (const Error& e) {
      fault(Place{}, path, e.what());
    }
  }

  void variable(const std::string& name, const std::string& value) {
    if (!name.starts_with(environment_prefix)) return misspelt_variable(name);
    setting("environment " + name, path_of_variable(name.substr(environment_prefix.size())), value);
  }

  void assignment(const std::string& set) {
    const std::size_t equals = set.find('=');
    if (equals == std::string::npos) {
      add(fmt::format("--set {}: has no '='; right would be --set section.key=value", printable(set)));
      return;
    }
    const std::string path(trimmed(std::string_view(set).substr(0, equals)));
    setting("--set " + set, path, std::string_view(set).substr(equals + 1));
  }

  /// Required keys that no source gave. Says nothing when a source could not be read: they may stand there.
  void require() {
    if (broken_) return;
    for (const ConfigItem& item : schema_.items) {
      if (!item.required || origins_.contains(item.path) || faulty_.contains(item.path)) continue;
      const auto section = origins_.find(item.section());
      const std::string where = section != origins_.end() ? section->second : name_;
      faulty_.insert(item.path);
      add(fmt::format("{}{}: is missing; right would be {} ({})", where.empty() ? "" : where + ": ", item.path,
                      expectation(item), item.doc));
    }
  }

  /// Faults between keys, unless one of the keys is at fault itself.
  void cross_check(const Config& config, int world_size) {
    if (broken_) return;
    for (const CrossFault& fault : find_cross_faults(config, world_size)) {
      const bool known = std::any_of(fault.keys.begin(), fault.keys.end(),
                                     [&](const std::string& key) { return faulty_.contains(key); });
      if (!known) add(fault_line(fault, origins_, name_));
    }
  }

  void throw_faults() const {
    if (faults_.empty()) return;
    std::vector<std::string> lines = faults_;
    if (more_faults_ > 0) lines.push_back(fmt::format("and {} more", more_faults_));
    throw_config_faults(lines);
  }

  const ConfigOrigins& origins() const { return origins_; }

 private:
  /// TRAINER_OPTIMIZER_LR is nobody's, and would be ignored without a word.
  void misspelt_variable(const std::string& name) {
    for (const ConfigItem& item : schema_.items) {
      const std::string meant = variable_of(item.path);
      if (!item.is_section() && with_single_underscores(name) == with_single_underscores(meant))
        return add(fmt::format("environment {}: sets nothing; did you mean {}", printable(name), meant));
    }
  }

  std::string where(Place place) const {
    return where_.empty() ? fmt::format("{}:{}:{}", name_, place.line, place.column) : where_;
  }

  void broken(const char* what) {
    broken_ = true;
    add(what);
  }

  void add(std::string line) {
    if (is_full()) {
      ++more_faults_;
    } else {
      faults_.push_back(std::move(line));
    }
  }

  bool is_full() const { return faults_.size() >= max_faults; }

  void fault(Place place, const std::string& path, const std::string& what) {
    faulty_.insert(path);
    add(fmt::format("{}: {}: {}", where(place), printable(path), what));
  }

  void unknown(Place place, const std::string& path) {
    const std::size_t dot = path.rfind('.');
    const std::string section = dot == std::string::npos ? "" : path.substr(0, dot);
    const std::string name = dot == std::string::npos ? path : path.substr(dot + 1);
    const ConfigItem* parent = schema_.find(section);
    const bool is_key = parent != nullptr && !parent->is_section();
    const std::string advice = is_key ? fmt::format("{} is a key; right would be {}", section, expectation(*parent))
                               : is_full() ? std::string()  // no one will read it
                                           : advise_key(schema_, section, name);
    fault(place, path,
          fmt::format("unknown {}; {}", section.empty() && where_.empty() ? "section or key" : "key", advice));
  }

  /// The keys of a section; `path` is empty for the whole document.
  void section(const std::string& path, const YamlNode& node) {
    std::map<std::string, Place> first;
    for (std::size_t i = 0; i < node.keys.size(); ++i) {
      const YamlNode::Key& key = node.keys[i];
      const std::string child = path.empty() ? key.text : path + "." + key.text;
      const auto [seen, is_new] = first.emplace(key.text, key.place);
      if (!is_new) {
        fault(key.place, child,
              fmt::format("is given twice; first at line {}, column {}", seen->second.line, seen->second.column));
      }
      const ConfigItem* item = key.text.find('.') == std::string::npos ? schema_.find(child) : nullptr;
      if (item == nullptr) {
        unknown(key.place, child);
      } else {
        if (item->is_section()) origins_[child] = where(key.place);
        assign(*item, node.items[i]);
      }
    }
  }

  void assign(const ConfigItem& item, const YamlNode& node) {
    if (item.is_section()) {
      if (node.kind == YamlNode::Kind::map) return section(item.path, node);
      if (node.kind == YamlNode::Kind::null && where_.empty()) return;  // a header whose keys are commented out
      fault(node.place, item.path,
            fmt::format("is {}; right would be its keys, {}", kind_text(node),
                        where_.empty() ? "indented below it" : "{key: value}"));
      return;
    }
    const std::string wrong = store_value(item, node);
    if (wrong.empty()) {
      origins_[item.path] = where(node.place);
    } else {
      fault(node.place, item.path, wrong);
    }
  }

  /// A value outside a file: brackets and quotes are read as YAML, all else is taken as it is, so that the shell's
  /// `--set data.train=shards/*.h5` needs no quotes inside quotes.
  static YamlNode inline_node(const ConfigItem& item, std::string_view value) {
    const std::string_view text = trimmed(value);
    const bool structured = !text.empty() && std::string_view("[{\"'").find(text[0]) != std::string_view::npos;
    if (structured || item.is_section()) return parse_yaml(text, "value");
    guard_bytes(text, "value");
    YamlNode node;
    const bool is_null =
        text == "null" || text == "~" || (text.empty() && !std::holds_alternative<std::string*>(*item.value));
    node.kind = is_null ? YamlNode::Kind::null : YamlNode::Kind::scalar;
    node.text = text;
    return node;
  }

  const Schema& schema_;
  std::string name_;   // of the file being read
  std::string where_;  // of the setting being read; empty: a file
  bool broken_ = false;
  std::vector<std::string> faults_;
  std::size_t more_faults_ = 0;
  std::set<std::string> faulty_;
  ConfigOrigins origins_;
};

}  // namespace

std::vector<std::pair<std::string, std::string>> config_environment() {
  std::vector<std::pair<std::string, std::string>> found;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view variable(*entry);
    const std::size_t equals = variable.find('=');
    if (!variable.starts_with(our_prefix) || equals == std::string_view::npos) continue;
    found.emplace_back(variable.substr(0, equals), variable.substr(equals + 1));
  }
  std::sort(found.begin(), found.end());
  return found;
}

Config read_config(const ConfigSources& sources, ConfigOrigins* origins) {
  Config config;
  const Schema schema = schema_of(config);
  Reader reader(schema);
  for (const std::string& file : sources.files) reader.file(file);
  for (const auto& [name, value] : sources.environment) reader.variable(name, value);
  for (const std::string& set : sources.sets) reader.assignment(set);
  reader.require();
  reader.cross_check(config, sources.world_size);
  reader.throw_faults();
  if (origins != nullptr) *origins = reader.origins();
  return config;
}

Config config_from_yaml(std::string_view text, const std::string& name) {
  Config config;
  const Schema schema = schema_of(config);
  Reader reader(schema);
  reader.text(text, name);
  reader.require();
  reader.throw_faults();
  return config;
}

}  // namespace trainer
