#include "core/train/same_model.h"

#include <fmt/format.h>

#include <map>
#include <set>
#include <sstream>
#include <vector>

#include "core/runtime/check.h"

namespace trainer {
namespace {

/// "section.key" -> value, of lines "key: value" that are two spaces deeper than their section.
std::map<std::string, std::string> values_by_path(const std::string& yaml) {
  std::map<std::string, std::string> values;
  std::vector<std::string> keys;  // of the sections around a line, and its own
  std::istringstream lines(yaml);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t indent = line.find_first_not_of(' '), colon = line.find(':');
    if (indent == std::string::npos || colon == std::string::npos) continue;
    keys.resize(indent / 2);
    keys.push_back(line.substr(indent, colon - indent));
    if (colon + 2 < line.size()) values[fmt::format("{}", fmt::join(keys, "."))] = line.substr(colon + 2);
  }
  return values;
}

bool may_change(const std::string& path) {
  static const std::set<std::string> paths = {"model.hidden_dropout",    "model.attention_dropout",
                                              "model.initializer_range", "model.max_position_embeddings",
                                              "model.rope_theta",        "model.sliding_window"};
  return paths.count(path) > 0 || path.rfind("model.rope_scaling.", 0) == 0;
}

}  // namespace

std::string compare_models(const std::string& saved_yaml, const std::string& yaml) {
  const std::map<std::string, std::string> saved = values_by_path(saved_yaml);
  std::string other_model, changed;
  for (const auto& [path, now] : values_by_path(yaml)) {
    const auto then = saved.find(path);
    if (path.rfind("model.", 0) != 0 || then == saved.end() || then->second == now) continue;
    (may_change(path) ? changed : other_model) +=
        fmt::format("\n  {}: {} in the checkpoint, {} now", path, then->second, now);
  }
  if (!other_model.empty())
    fail(ExitCode::config,
         "the checkpoint is one of another model:{}\nSet them as they were, or train the new model in a "
         "train.output_dir "
         "of its own.",
         other_model);
  return changed;
}

std::string value_in(const std::string& yaml, const std::string& path) {
  const std::map<std::string, std::string> values = values_by_path(yaml);
  const auto found = values.find(path);
  return found == values.end() ? std::string() : found->second;
}

}  // namespace trainer
