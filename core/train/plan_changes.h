// Settings that make a rank need less memory, and what they cost: what `trainer plan` advises.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "core/config/config.h"
#include "core/train/cards.h"

namespace trainer {

/// The configuration with fewer samples a micro-batch: every proper divisor that validates for `ranks` ranks, the
/// largest first. Like the next one, for a configuration that is valid for `ranks`, resolved or not.
std::vector<Config> smaller_micro_batches(const Config& config, int ranks);
/// The configuration with a larger tensor-parallel size that validates for `ranks` ranks, with sequence parallelism
/// where that validates, and with a data-parallel size that follows; the smallest first, up to the 8 ranks that NVLink
/// joins.
std::vector<Config> larger_tensor_parallel(const Config& config, int ranks);

/// The most layers that can stay resident under ZeRO 3 with 512 MiB of the card to spare (parallelism.
/// zero_resident_layers); 0 where none can. `config` is not resolved, and valid for `ranks` but for that number.
std::int64_t most_resident_layers(const Config& config, int ranks, const Card& card);

/// A change of a configuration, and what a rank needs with it.
struct PlanChange {
  bool fits = false;
  std::vector<std::string> sets;  // "section.key=value"
  std::int64_t bytes = 0;         // on the device, of the rank that needs the most
  std::int64_t host_bytes = 0;    // of its pinned memory
};
/// Among all combinations of recomputation, micro-batch, tensor parallelism, ZeRO stage, fewer resident layers, bf16
/// moments and offload on the same ranks, the one of least expected cost in speed that fits the card with 512 MiB to
/// spare; where none does, the one that needs least. What the card cannot do is changed in all of them (for_card).
/// `config` is not resolved, and valid for `ranks`. Without `may_offload` no candidate begins to offload.
PlanChange cheapest_change(const Config& config, int ranks, const Card& card, bool may_offload = true);

}  // namespace trainer
