// Checks between keys: what a single key's range cannot say.
#pragma once
#include <string>
#include <vector>

#include "core/config/config.h"
#include "core/config/reader.h"

namespace trainer {

/// A fault between keys.
struct CrossFault {
  std::vector<std::string> keys;  // paths of the keys involved, the one to change first
  std::string what;               // with the numbers and the nearest valid value
};

/// All faults between keys. A value out of its own range (only a Config made in code can have one) is a fault too, and
/// silences the others that it would cause. `world_size`: ranks of the job; 0:
/// not known, and what depends on it is not checked.
std::vector<CrossFault> find_cross_faults(const Config& config, int world_size);

/// The same as lines, "section.key: what".
std::vector<std::string> validate(const Config& config, int world_size);

/// Throws Error(config) with all of validate()'s lines, each with its key's origin, if there are any.
void check(const Config& config, int world_size, const ConfigOrigins& origins = {});

/// Throws one Error(config) with a line for each fault.
[[noreturn]] void throw_config_faults(const std::vector<std::string>& lines);

/// A line for a fault: the origin of the first of its keys (or their sections) that has one, else `elsewhere`; the key;
/// what is wrong.
std::string fault_line(const CrossFault& fault, const ConfigOrigins& origins, const std::string& elsewhere = {});

}  // namespace trainer
