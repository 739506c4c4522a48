#include "core/config/spelling.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

namespace trainer {
namespace {

char folded(char c) {
  return c == '-' ? '_' : c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

/// Names of other trainers and model files for our keys.
constexpr std::array<Synonym, 34> synonyms = {{
    {"accumulate_grad_batches", "train.global_batch_size"},
    {"batch_size", "train.global_batch_size"},
    {"block_size", "train.seq_length"},
    {"context_length", "train.seq_length"},
    {"d_ff", "model.intermediate_size"},
    {"d_model", "model.hidden_size"},
    {"dim", "model.hidden_size"},
    {"dp", "parallelism.data_parallel_size"},
    {"dtype", "precision.dtype"},
    {"epochs", "train.train_epochs"},
    {"ffn_hidden_size", "model.intermediate_size"},
    {"fp16", "precision.dtype"},
    {"bf16", "precision.dtype"},
    {"grad_clip", "optimizer.clip_grad_norm"},
    {"gradient_accumulation_steps", "train.global_batch_size"},
    {"hidden_act", "model.activation"},
    {"learning_rate", "optimizer.lr"},
    {"max_grad_norm", "optimizer.clip_grad_norm"},
    {"max_steps", "train.train_steps"},
    {"n_embd", "model.hidden_size"},
    {"n_head", "model.num_attention_heads"},
    {"n_heads", "model.num_attention_heads"},
    {"n_inner", "model.intermediate_size"},
    {"n_kv_heads", "model.num_key_value_heads"},
    {"n_layer", "model.num_layers"},
    {"n_layers", "model.num_layers"},
    {"n_positions", "model.max_position_embeddings"},
    {"num_hidden_layers", "model.num_layers"},
    {"num_train_epochs", "train.train_epochs"},
    {"per_device_train_batch_size", "train.micro_batch_size"},
    {"rms_norm_eps", "model.norm_eps"},
    {"seq_len", "train.seq_length"},
    {"tp", "parallelism.tensor_parallel_size"},
    {"train_iters", "train.train_steps"},
}};

/// Their names for our choices.
constexpr std::array<Synonym, 14> synonyms_of_choices = {{
    {"gpu", "cuda"},
    {"nvidia", "cuda"},
    {"half", "fp16"},
    {"float16", "fp16"},
    {"bfloat16", "bf16"},
    {"fp32", "float32"},
    {"single", "float32"},
    {"fp64", "float64"},
    {"double", "float64"},
    {"silu", "swiglu"},
    {"gelu_new", "gelu_tanh"},
    {"gelu_pytorch_tanh", "gelu_tanh"},
    {"rotary", "rope"},
    {"absolute", "learned"},
}};

/// Edits above which a name is not near.
int tolerance(std::string_view name) {
  return std::max(1, static_cast<int>(name.size()) / 3);
}

/// Distance where a name that is a part of the other one counts as near: "warmup" and "warmup_steps".
int distance(std::string_view name, std::string_view candidate) {
  const bool part = std::min(name.size(), candidate.size()) >= 4 &&
                    (candidate.find(name) != std::string_view::npos || name.find(candidate) != std::string_view::npos);
  const int edits = edit_distance(name, candidate);
  return part ? std::min(edits, tolerance(name)) : edits;
}

std::string keys_of(const Schema& schema, const std::string& section) {
  std::vector<std::string> names;
  for (const ConfigItem& item : schema.items) {
    if (item.section() == section) names.push_back(item.name());
  }
  return fmt::format("{} {}: {}", section.empty() ? "sections" : "keys of", section.empty() ? "are" : section,
                     fmt::join(names, ", "));
}

/// Sections and keys called exactly so, wherever they are.
std::string same_name_elsewhere(const Schema& schema, const std::string& name) {
  std::vector<std::string> places;
  for (const ConfigItem& item : schema.items) {
    if (item.name() == name && item.depth > 0) places.push_back(item.path);
  }
  if (places.empty()) return {};
  const std::string& first = places.front();
  return fmt::format("{} belongs to {}: did you mean {}", name, first.substr(0, first.rfind('.')),
                     fmt::join(places, " or "));
}

}  // namespace

int edit_distance(std::string_view a, std::string_view b) {
  std::vector<int> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  std::iota(last.begin(), last.end(), 0);
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = static_cast<int>(i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const bool same = folded(a[i - 1]) == folded(b[j - 1]);
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (same ? 0 : 1)});
      const bool swapped =
          i > 1 && j > 1 && folded(a[i - 1]) == folded(b[j - 2]) && folded(a[i - 2]) == folded(b[j - 1]);
      if (swapped) row[j] = std::min(row[j], before[j - 2] + 1);
    }
    std::swap(before, last);
    std::swap(last, row);
  }
  return last[b.size()];
}

std::span<const Synonym> key_synonyms() {
  return synonyms;
}

std::span<const Synonym> choice_synonyms() {
  return synonyms_of_choices;
}

std::string nearest_choice(std::string_view value, const std::vector<std::string>& choices) {
  for (const auto& [other, ours] : synonyms_of_choices) {
    const bool offered = std::find(choices.begin(), choices.end(), ours) != choices.end();
    if (offered && edit_distance(value, other) == 0) return ours;
  }
  return nearest_name(value, choices);
}

std::string nearest_name(std::string_view name, const std::vector<std::string>& candidates) {
  if (name.size() > 64) return {};  // no typing error, and the distance costs time
  const auto nearest = std::min_element(candidates.begin(), candidates.end(), [&](const auto& a, const auto& b) {
    return distance(name, a) < distance(name, b);
  });
  if (nearest == candidates.end() || distance(name, *nearest) > tolerance(name)) return {};
  return *nearest;
}

std::string advise_key(const Schema& schema, const std::string& section, const std::string& name) {
  std::vector<std::string> here, all;
  for (const ConfigItem& item : schema.items) {
    (item.section() == section ? here : all).push_back(item.name());
  }
  const auto path = [&](const std::string& key) { return section.empty() ? key : section + "." + key; };
  const std::string near_here = nearest_name(name, here);
  if (!near_here.empty() && edit_distance(name, near_here) <= 1) return "did you mean " + path(near_here);
  if (std::string elsewhere = same_name_elsewhere(schema, name); !elsewhere.empty()) return elsewhere;
  if (here.empty()) return advise_key(schema, "", section);
  for (const auto& [other, ours] : synonyms) {
    if (edit_distance(name, other) == 0) return fmt::format("did you mean {}", ours);
  }
  if (!near_here.empty()) return "did you mean " + path(near_here);
  const std::string near_name = nearest_name(name, all);
  for (const ConfigItem& item : schema.items) {
    if (!near_name.empty() && item.name() == near_name) return "did you mean " + item.path;
  }
  return keys_of(schema, section);
}

}  // namespace trainer
