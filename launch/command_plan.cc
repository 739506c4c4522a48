#include <cstdio>

#include "core/config/resolve.h"
#include "core/runtime/attention_support.h"
#include "core/runtime/counted.h"
#include "core/train/cards.h"
#include "core/train/engine_parts.h"
#include "core/train/plan.h"
#include "core/train/plan_changes.h"
#include "core/train/reporting/tables.h"
#include "launch/commands.h"
#include "launch/read_config.h"

namespace trainer {
namespace {

std::string sets_of(const PlanChange& change) {
  std::string sets;
  for (const std::string& set : change.sets) sets += " --set " + set;
  return sets;
}

std::string host_part(const PlanChange& change) {
  return change.host_bytes > 0 ? fmt::format("; {} of the host's memory a rank", format_bytes(change.host_bytes)) : "";
}

std::string fitting(const PlanChange& change, const Card& card) {
  return fmt::format("{} ({}, {} are left{})", sets_of(change), format_bytes(change.bytes),
                     format_bytes(card.bytes - change.bytes), host_part(change));
}

/// What to change, as lines for the user to copy: the cheapest, and where that begins to take the host's memory, which
/// the host may not have, the cheapest that does not.
std::string advice(const Config& given, int ranks, const Card& card) {
  const PlanChange change = cheapest_change(given, ranks, card);
  if (!change.fits) {
    const std::string sets = sets_of(change);
    return fmt::format("nothing fits on these ranks: the least is {}, with{}{}; take more ranks or larger cards",
                       format_bytes(change.bytes), sets.empty() ? " the configuration as it is" : sets,
                       host_part(change));
  }
  std::string text = fmt::format("smallest change that fits:{}", fitting(change, card));
  if (change.host_bytes == 0 || given.optimizer.offload) return text;
  const PlanChange on_card = cheapest_change(given, ranks, card, /*may_offload=*/false);
  if (on_card.fits) text += fmt::format("\nwithout the host's memory:{}", fitting(on_card, card));
  return text;
}

/// What memory that is left can be used for.
void print_resident_layers(std::int64_t now, std::int64_t most) {
  if (most > now)
    fmt::print("parallelism.zero_resident_layers: {} would fit as well: those layers are gathered once a step\n", most);
}

/// Whether the job runs on the card, and what would.
ExitCode judge(const Config& given, const Config& config, int ranks, std::int64_t needed, const Card& card) {
  const std::int64_t left = card.bytes - needed;
  const bool runs = card_faults(config, card.name, card.sm).empty();
  fmt::print("\n{} has {}: {}\n", card.name, format_bytes(card.bytes),
             left >= 0 ? fmt::format("fits, {} are left", format_bytes(left))
                       : fmt::format("does not fit, {} are missing", format_bytes(-left)));
  if (!has_cudnn_attention(card.sm) && config.train.attention == AttentionChoice::automatic)
    fmt::print("train.attention: auto is builtin there: cuDNN's begins with compute capability 8.0\n");
  else if (config.data.intra_document_attention && !has_cudnn_documents(card.sm) &&
           config.train.attention == AttentionChoice::automatic)
    fmt::print("train.attention: auto is builtin for documents there: cuDNN's need compute capability 9.0\n");
  if (left < 0 || !runs)
    fmt::print("{}\n", advice(given, ranks, card));
  else if (config.parallelism.zero_stage == 3 && zero_size(config.parallelism) > 1)
    print_resident_layers(config.parallelism.zero_resident_layers, most_resident_layers(given, ranks, card));
  std::fflush(stdout);
  check_card(config, card.name, card.sm);
  return left >= 0 ? ExitCode::ok : ExitCode::memory;
}

}  // namespace

ExitCode command_plan(const PlanOptions& options) {
  const Card card = options.card ? find_card(*options.card) : Card{};
  const int ranks = options.ranks > 0 ? options.ranks : ranks_asked_for(options.config, DataUse::none);
  const Config given = given_config(options.config, ranks, DataUse::none);
  Config config = given;
  resolve_defaults(config, ranks);
  const FullestRank fullest = fullest_rank(config, card.sm);
  const MemoryEstimate& estimate = fullest.estimate;
  const MeshShape shape = mesh_shape(config);
  fmt::print("{}: data parallel {} x tensor parallel {}, ZeRO over {}; {}\n\n{}\n{}", counted(ranks, "rank"), shape.dp,
             shape.tp, shape.zero,
             fullest.all_equal ? "all need the same" : fmt::format("rank {} needs the most", fullest.rank),
             memory_table(estimate), largest_table(config, estimate));
  const std::string host = host_memory_note(estimate, ranks, host_ram_bytes());
  if (!host.empty()) fmt::print("\n{}\n", host);
  if (!options.card) return ExitCode::ok;
  return judge(given, config, ranks, estimate.total_bytes(), card);
}

}  // namespace trainer
