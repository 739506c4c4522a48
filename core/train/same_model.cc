#include "core/train/same_model.h"

#include <fmt/ranges.h>

#include <map>
#include <optional>
#include <set>
#include <vector>

#include "core/config/resolve.h"
#include "core/config/yaml.h"
#include "core/runtime/check.h"

namespace trainer {
namespace {

using Values = std::map<std::string, std::string>;  // by section.key

void collect(const YamlNode& node, const std::string& path, Values& values) {
  switch (node.kind) {
    case YamlNode::Kind::map:
      for (std::size_t i = 0; i < node.keys.size(); ++i)
        collect(node.items[i], path.empty() ? node.keys[i].text : path + "." + node.keys[i].text, values);
      return;
    case YamlNode::Kind::list: {
      std::vector<std::string> texts;
      for (const YamlNode& item : node.items) texts.push_back(item.text);
      values[path] = fmt::format("[{}]", fmt::join(texts, ", "));
      return;
    }
    case YamlNode::Kind::scalar:
    case YamlNode::Kind::null:
      values[path] = node.text;
  }
}

Values values_of(const std::string& yaml) {
  Values values;
  collect(parse_yaml(yaml, "the saved configuration"), "", values);
  return values;
}

/// Whether other values give other weights, beyond rounding: layouts, recomputation and places do not.
bool shapes_training(const std::string& key) {
  static const std::set<std::string> keys = {"train.seq_length",
                                             "train.global_batch_size",
                                             "train.train_steps",
                                             "train.train_tokens",
                                             "train.train_epochs",
                                             "train.seed",
                                             "train.z_loss",
                                             "data.train",
                                             "data.intra_document_attention"};
  const bool in_section = key.starts_with("model.") || key.starts_with("optimizer.") ||
                          key.starts_with("lr_scheduler.") || key.starts_with("precision.");
  return keys.contains(key) || (in_section && key != "optimizer.offload" && key != "precision.max_consecutive_skips");
}

/// All but what a run may change on purpose, such as dropout and positions for longer sequences; and the optimizer,
/// which would not find its moments.
bool must_stay(const std::string& path) {
  static const std::set<std::string> paths = {"model.hidden_dropout",    "model.attention_dropout",
                                              "model.initializer_range", "model.max_position_embeddings",
                                              "model.rope_theta",        "model.sliding_window"};
  const bool of_model = path.starts_with("model.") && !path.starts_with("model.rope_scaling.");
  return (of_model && !paths.contains(path)) || path == "optimizer.name";
}

/// Why the checkpoint does not serve a run with this change, as a remark that may be empty; nothing when it does.
std::optional<std::string> obstacle(const ChangedSetting& change, const OptimizerConfig& optimizer) {
  const auto& [key, then, now] = change;
  if (must_stay(key)) return "";
  if (key == "optimizer.momentum" && optimizer.name == OptimizerName::sgd && then == "0")
    return " (SGD without momentum saves no moments to go on with)";
  if (key == "precision.dtype" && (then == "float64" || now == "float64"))
    return " (float64 is saved as such, all else as float32)";
  if (key == "optimizer.moments_dtype" && keeps_moments(optimizer) && (then == "bf16" || now == "bf16"))
    return " (moments are saved in their type)";
  return std::nullopt;
}

}  // namespace

std::vector<ChangedSetting> changed_settings(const std::string& saved_yaml, const std::string& yaml) {
  const Values saved = values_of(saved_yaml);
  std::vector<ChangedSetting> changed;
  for (const auto& [key, now] : values_of(yaml)) {
    const auto then = saved.find(key);
    if (shapes_training(key) && then != saved.end() && then->second != now) changed.push_back({key, then->second, now});
  }
  return changed;
}

void check_same_model(const std::vector<ChangedSetting>& changed, const OptimizerConfig& optimizer) {
  std::string others;
  for (const ChangedSetting& change : changed)
    if (const auto why = obstacle(change, optimizer))
      others += fmt::format("\n  {}: {} in the checkpoint, {} now{}", change.key, change.then, change.now, *why);
  if (!others.empty())
    fail(ExitCode::config,
         "the checkpoint is one of another model or optimizer:{}\nSet them as they were, or train anew in a "
         "train.output_dir of its own.",
         others);
}

std::string value_in(const std::string& yaml, const std::string& path) {
  const Values values = values_of(yaml);
  const auto found = values.find(path);
  return found == values.end() ? std::string() : found->second;
}

}  // namespace trainer
