#include <algorithm>
#include <utility>

#include "core/train/engine_parts.h"
#include "core/train/plan.h"
#include "core/train/reporting/tables.h"
#include "launch/commands.h"
#include "launch/read_config.h"

namespace trainer {
namespace {

/// Ranks that the sizes of the configuration ask for; an automatic data-parallel size counts as one.
int ranks_of(const ConfigOptions& options) {
  const ParallelismConfig sizes = resolved_config(options, /*world_size=*/0, DataUse::none).parallelism;
  return static_cast<int>(sizes.tensor_parallel_size * std::max<std::int64_t>(1, sizes.data_parallel_size));
}

/// The rank with the most memory.
struct Fullest {
  int rank = 0;
  MemoryEstimate estimate;
  bool all_equal = true;
};
Fullest fullest_rank(const Config& config, int ranks) {
  Fullest fullest{0, plan_memory(config, 0)};
  for (int rank = 1; rank < ranks; ++rank) {
    MemoryEstimate estimate = plan_memory(config, rank);
    const std::int64_t more = estimate.total_bytes() - fullest.estimate.total_bytes();
    fullest.all_equal = fullest.all_equal && more == 0;
    if (more > 0) fullest = {rank, std::move(estimate), false};
  }
  return fullest;
}

}  // namespace

ExitCode command_plan(const PlanOptions& options) {
  const int ranks = options.ranks > 0 ? options.ranks : ranks_of(options.config);
  const Config config = resolved_config(options.config, ranks, DataUse::none);
  const Fullest fullest = fullest_rank(config, ranks);
  const MemoryEstimate& estimate = fullest.estimate;
  const MeshShape shape = mesh_shape(config);
  fmt::print("{} rank{}: data parallel {} x tensor parallel {}, ZeRO over {}; {}\n\n{}\n{}", ranks,
             ranks == 1 ? "" : "s", shape.dp, shape.tp, shape.zero,
             fullest.all_equal ? "all need the same" : fmt::format("rank {} needs the most", fullest.rank),
             memory_table(estimate), largest_table(config, estimate));
  const std::string host = host_memory_note(estimate, ranks, host_ram_bytes());
  if (!host.empty()) fmt::print("\n{}\n", host);
  if (options.card.empty()) return ExitCode::ok;
  const std::int64_t capacity = card_bytes(options.card);
  const std::int64_t left = capacity - estimate.total_bytes();
  fmt::print("\n{} has {}: {}\n", options.card, format_bytes(capacity),
             left >= 0 ? fmt::format("fits, {} are left", format_bytes(left))
                       : fmt::format("does not fit, {} are missing", format_bytes(-left)));
  return left >= 0 ? ExitCode::ok : ExitCode::memory;
}

}  // namespace trainer
