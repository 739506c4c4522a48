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

bool starts_with(const std::string& text, const char* start) {
  return text.rfind(start, 0) == 0;
}

/// Whether other values give other weights, beyond rounding: layouts, recomputation and places do not.
bool shapes_training(const std::string& key) {
  static const std::set<std::string> keys = {"train.seq_length",   "train.global_batch_size",
                                             "train.train_steps",  "train.train_tokens",
                                             "train.train_epochs", "train.seed",
                                             "train.z_loss",       "data.train"};
  const bool in_section = starts_with(key, "model.") || starts_with(key, "optimizer.") ||
                          starts_with(key, "lr_scheduler.") || starts_with(key, "precision.");
  return keys.count(key) > 0 || (in_section && key != "optimizer.offload" && key != "precision.max_consecutive_skips");
}

/// All but what a run may change on purpose, such as dropout and positions for longer sequences; and the optimizer,
/// which would not find its moments.
bool must_stay(const std::string& path) {
  static const std::set<std::string> paths = {"model.hidden_dropout",    "model.attention_dropout",
                                              "model.initializer_range", "model.max_position_embeddings",
                                              "model.rope_theta",        "model.sliding_window"};
  const bool of_model = starts_with(path, "model.") && !starts_with(path, "model.rope_scaling.");
  return (of_model && paths.count(path) == 0) || path == "optimizer.name";
}

}  // namespace

std::vector<ChangedSetting> changed_settings(const std::string& saved_yaml, const std::string& yaml) {
  const std::map<std::string, std::string> saved = values_by_path(saved_yaml);
  std::vector<ChangedSetting> changed;
  for (const auto& [key, now] : values_by_path(yaml)) {
    const auto then = saved.find(key);
    if (shapes_training(key) && then != saved.end() && then->second != now) changed.push_back({key, then->second, now});
  }
  return changed;
}

void check_same_model(const std::vector<ChangedSetting>& changed) {
  std::string others;
  for (const auto& [key, then, now] : changed)
    if (must_stay(key)) others += fmt::format("\n  {}: {} in the checkpoint, {} now", key, then, now);
  if (!others.empty())
    fail(ExitCode::config,
         "the checkpoint is one of another model or optimizer:{}\nSet them as they were, or train anew in a "
         "train.output_dir of its own.",
         others);
}

std::string value_in(const std::string& yaml, const std::string& path) {
  const std::map<std::string, std::string> values = values_by_path(yaml);
  const auto found = values.find(path);
  return found == values.end() ? std::string() : found->second;
}

}  // namespace trainer
