// A valid configuration to vary, and ways to read variants of it.
#pragma once
#include <functional>
#include <string>

#include "core/config/config.h"
#include "core/config/reader.h"

namespace trainer {

/// A small valid file, used by line number: tests replace single lines of it.
inline constexpr const char* valid_text =
    "model:\n"                    // 1
    "  hidden_size: 64\n"         // 2
    "  num_layers: 2\n"           // 3
    "  num_attention_heads: 4\n"  // 4
    "  intermediate_size: 176\n"  // 5
    "  vocab_size: 257\n"         // 6
    "train:\n"                    // 7
    "  seq_length: 64\n"          // 8
    "  global_batch_size: 8\n"    // 9
    "  train_steps: 100\n"        // 10
    "optimizer:\n"                // 11
    "  lr: 3e-4\n"                // 12
    "data:\n"                     // 13
    "  train: [a.h5]\n";          // 14

/// valid_text with line `number` (from 1) replaced.
std::string with_line(int number, const std::string& line);

Config valid_config();

/// A file in the test's own temporary folder; returns its path.
std::string config_file(const std::string& name, const std::string& text);

/// The message of the Error(config) that `action` throws; fails the test and returns "" when it throws none, or
/// another.
std::string config_fault(const std::function<void()>& action);

}  // namespace trainer
