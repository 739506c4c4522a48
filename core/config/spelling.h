// What a mistyped name was meant to be.
#pragma once
#include <span>
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

/// The choice that `value` was meant to be: what it is called elsewhere ("gpu": cuda), or the nearest one; empty when
/// none is near.
std::string nearest_choice(std::string_view value, const std::vector<std::string>& choices);

/// What other trainers and model files call one of our keys or choices.
struct Synonym {
  const char* other;
  const char* ours;
};
std::span<const Synonym> key_synonyms();
std::span<const Synonym> choice_synonyms();

/// Advice for the unknown key `name` in `section` ("" at the top): the section it belongs to, the nearest key of any
/// section, the key that other trainers call so, or else the keys that there are. Of a section that does not exist
/// either, the nearest section.
std::string advise_key(const Schema& schema, const std::string& section, const std::string& name);

}  // namespace trainer
