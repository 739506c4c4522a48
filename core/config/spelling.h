// What a mistyped name was meant to be.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "core/config/schema.h"

namespace trainer {

/// Edits between two names: insertions, deletions, substitutions, and swaps of neighbours (optimal string alignment).
/// Capital letters and '-' for '_' cost nothing.
int edit_distance(std::string_view a, std::string_view b);

/// The candidate nearest to `name`, empty when none is near.
std::string nearest_name(std::string_view name, const std::vector<std::string>& candidates);

/// Advice for the unknown key `name` in `section` ("" at the top): the section it belongs to, the nearest key of any
/// section, the key that other trainers call so, or else the keys that there are.
std::string advise_key(const Schema& schema, const std::string& section, const std::string& name);

}  // namespace trainer
