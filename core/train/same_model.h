// Whether a checkpoint is one of the model that is to be trained. Shapes that differ are found when tensors are read;
// fewer layers or another activation function would go unnoticed.
#pragma once
#include <string>

namespace trainer {

/// Compares the `model` sections of two complete configurations (resolved_yaml). Throws Error(config) that names the
/// keys and both values when the checkpoint is one of another model. Returns what differs otherwise, a line a key:
/// settings that a run may change on purpose, such as dropout and positions for longer sequences. Empty: nothing. A key
/// that only one of them has belongs to another version of this program and is not compared.
std::string compare_models(const std::string& saved_yaml, const std::string& yaml);

/// Value of `section.key` in a complete configuration; empty when it is not there.
std::string value_in(const std::string& yaml, const std::string& path);

}  // namespace trainer
