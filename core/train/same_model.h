// What a run that goes on from a checkpoint changes, and whether that is still the same model. Shapes that differ are
// found when tensors are read; fewer layers or another activation function would go unnoticed.
#pragma once
#include <string>
#include <vector>

#include "core/config/config.h"

namespace trainer {

struct ChangedSetting {
  std::string key;   // section.key
  std::string then;  // in the checkpoint
  std::string now;
};

/// Settings of two complete configurations (resolved_yaml) that differ and shape what is learned, by their keys. Where
/// and how it is computed (layout, micro-batches, recomputation, offloading) is left out. A key that only one of them
/// has belongs to another version of this program and is not compared.
std::vector<ChangedSetting> changed_settings(const std::string& saved_yaml, const std::string& yaml);

/// Throws Error(config) that names the keys and both values when these changes make another model of the checkpoint's,
/// or leave `optimizer`, the one of now, without moments that it can use.
void check_same_model(const std::vector<ChangedSetting>& changed, const OptimizerConfig& optimizer);

/// Value of `section.key` in a complete configuration; empty when it is not there.
std::string value_in(const std::string& yaml, const std::string& path);

}  // namespace trainer
