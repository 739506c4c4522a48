// The cards that `trainer plan` knows by name, and what a configuration may ask of a card.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/config/config.h"

namespace trainer {

struct Card {
  std::string name;
  std::int64_t bytes = 0;  // what CUDA reports as its total: less than the name says
  int sm = 0;              // compute capability x 10; 0: not known
};

/// A card by its name ("h200", "A100-80GB"; capitals and separators do not matter), by the one that nvidia-smi prints
/// ("NVIDIA A100-SXM4-80GB"), or a number of GiB. Throws Error(config) for others, naming those that are known, and for
/// names of several cards ("a100").
Card find_card(std::string_view text);

/// Products in bf16 begin with Ampere. A compute capability that is not known (0) counts as new.
constexpr bool has_bf16(int sm) {
  return sm == 0 || sm >= 80;
}

/// What `config` asks and a card of compute capability `sm` cannot do: "section.key: what; right would be ...".
std::vector<std::string> card_faults(const Config& config, std::string_view card, int sm);
/// Throws Error(config) with all of them, if there are any.
void check_card(const Config& config, std::string_view card, int sm);
/// The same configuration with what such a card can do in their place: fp16, and attention of our own.
Config for_card(Config config, int sm);

}  // namespace trainer
