#include "core/train/plan_changes.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <utility>

#include "core/config/resolve.h"
#include "core/config/schema.h"
#include "core/config/validate.h"
#include "core/train/plan.h"

namespace trainer {
namespace {

bool is_valid(const Config& config, int ranks) {
  return find_cross_faults(config, ranks).empty();
}

/// A configuration and how much longer its step is expected to take, in percent of a step.
struct Candidate {
  Config config;
  double cost = 0.0;
};
using Candidates = std::vector<Candidate>;

// Expected costs, in percent of a step. They only order the candidates: recomputation, and two data-parallel cards, as
// measured (docs/performance.md); the others are rough.
constexpr std::array<double, 3> kRecompute = {0, 1, 30};  // none, selective, full
constexpr std::array<double, 4> kZero = {0, 0, 2, 4};
constexpr double kNoneResident = 1;  // in place of the given number; fewer cost a part of it
constexpr double kHalfMicroBatch = 2;
constexpr double kSequenceParallel = 0.5;
constexpr double kTwiceTensorParallel = 8;
/// Costs no time, but changes the numbers: after what does not, as long as that is not slow.
constexpr double kNarrowMoments = 10;
/// Besides the time on the link: takes the host's memory, and all cards of a host share its bandwidth.
constexpr double kOffload = 12;

Candidates more_recomputation(const Config& config) {
  Candidates all;
  const auto now = static_cast<std::size_t>(config.activation_checkpointing.mode);
  for (std::size_t mode = now + 1; mode < kRecompute.size(); ++mode) {
    all.push_back({config, kRecompute[mode] - kRecompute[now]});
    all.back().config.activation_checkpointing.mode = static_cast<RecomputeMode>(mode);
  }
  return all;
}

/// `times(config)`: by what factor a size has grown or shrunk; each factor of two costs `cost`.
template <class Times>
void add_sizes(Candidates& all, std::vector<Config> configs, double cost, const Times& times) {
  for (Config& config : configs) {
    const std::int64_t factor = times(config);
    all.push_back({std::move(config), cost * std::log2(factor)});
  }
}

Candidates less_samples(const Config& config, int ranks) {
  Candidates all;
  add_sizes(all, smaller_micro_batches(config, ranks), kHalfMicroBatch,
            [&](const Config& smaller) { return config.train.micro_batch_size / smaller.train.micro_batch_size; });
  return all;
}

Candidates more_tensor_parallel(const Config& config, int ranks) {
  Candidates all;
  if (config.parallelism.tensor_parallel_size > 1 && !config.parallelism.sequence_parallel) {
    all.push_back({config, kSequenceParallel});
    all.back().config.parallelism.sequence_parallel = true;
  }
  add_sizes(all, larger_tensor_parallel(config, ranks), kTwiceTensorParallel, [&](const Config& larger) {
    return larger.parallelism.tensor_parallel_size / config.parallelism.tensor_parallel_size;
  });
  return all;
}

Candidates more_zero(const Config& config, int ranks) {
  Candidates all;
  const auto now = static_cast<std::size_t>(config.parallelism.zero_stage);
  if (ranks == config.parallelism.tensor_parallel_size) return all;
  for (std::size_t stage = now + 1; stage < kZero.size(); ++stage) {
    all.push_back({config, kZero[stage] - kZero[now]});
    all.back().config.parallelism.zero_stage = static_cast<std::int64_t>(stage);
  }
  return all;
}

Candidates fewer_resident(const Config& config) {
  Candidates all;
  const std::int64_t now = config.parallelism.zero_resident_layers;
  for (std::int64_t eighths = 7; eighths >= 0; --eighths) {
    const std::int64_t layers = now * eighths / 8;
    if (layers == (all.empty() ? now : all.back().config.parallelism.zero_resident_layers)) continue;
    all.push_back({config, kNoneResident * static_cast<double>(now - layers) / static_cast<double>(now)});
    all.back().config.parallelism.zero_resident_layers = layers;
  }
  return all;
}

Candidates narrow_moments(const Config& config) {
  if (config.optimizer.moments_dtype == MomentsDtype::bf16) return {};
  Candidates all = {{config, kNarrowMoments}};
  all.back().config.optimizer.moments_dtype = MomentsDtype::bf16;
  return all;
}

/// A parameter takes 10 bytes through the link in each direction and 6 FLOPs a token: at 25 GB/s and 400 TFLOP/s, the
/// share of the step follows from the tokens that a rank computes in a step for each parameter that it updates.
Candidates offload(const Config& config, int ranks) {
  if (config.optimizer.offload) return {};
  constexpr double kSecondsOfLink = 10 / 25e9, kSecondsOfToken = 6 / 400e12;
  const ParallelismConfig& parallel = config.parallelism;
  const std::int64_t dp = ranks / parallel.tensor_parallel_size;
  const std::int64_t sharing = parallel.zero_stage == 0       ? 1
                               : parallel.zero_group_size > 0 ? parallel.zero_group_size
                                                              : dp;
  const auto step_tokens = static_cast<double>(config.train.global_batch_size * config.train.seq_length);
  const double ratio = static_cast<double>(dp) / static_cast<double>(sharing) / step_tokens;
  Candidates all = {{config, kOffload + 100 * kSecondsOfLink / kSecondsOfToken * ratio}};
  all.back().config.optimizer.offload = true;
  return all;
}

/// Adds to each candidate what `alternatives` makes of it.
void multiply(Candidates& all, const std::function<Candidates(const Config&)>& alternatives) {
  for (std::size_t i = 0, count = all.size(); i < count; ++i) {
    const double cost = all[i].cost;
    for (Candidate& more : alternatives(all[i].config)) all.push_back({std::move(more.config), cost + more.cost});
  }
}

/// The keys in which `config` differs from `given`, as --set takes them.
std::vector<std::string> changed_keys(Config given, Config config) {
  std::vector<std::string> sets;
  const Schema before = schema_of(given), after = schema_of(config);
  for (std::size_t i = 0; i < after.items.size(); ++i) {
    const ConfigItem& item = after.items[i];
    if (!item.is_section() && value_text(item) != value_text(before.items[i]))
      sets.push_back(fmt::format("{}={}", item.path, value_text(item)));
  }
  return sets;
}

Candidates all_candidates(const Config& config, int ranks, bool may_offload) {
  Candidates all = {{config}};
  multiply(all, [&](const Config& c) { return fewer_resident(c); });
  multiply(all, [&](const Config& c) { return more_recomputation(c); });
  multiply(all, [&](const Config& c) { return less_samples(c, ranks); });
  multiply(all, [&](const Config& c) { return more_tensor_parallel(c, ranks); });
  multiply(all, [&](const Config& c) { return more_zero(c, ranks); });
  multiply(all, [&](const Config& c) { return narrow_moments(c); });
  if (may_offload) multiply(all, [&](const Config& c) { return offload(c, ranks); });
  std::erase_if(all, [&](const Candidate& c) { return !is_valid(c.config, ranks); });
  // Of equal costs the one that was made first, which has fewer changes.
  std::stable_sort(all.begin(), all.end(), [](const Candidate& a, const Candidate& b) { return a.cost < b.cost; });
  return all;
}

}  // namespace

std::vector<Config> smaller_micro_batches(const Config& config, int ranks) {
  std::vector<Config> all;
  for (std::int64_t size = config.train.micro_batch_size / 2; size >= 1; --size) {
    if (config.train.micro_batch_size % size != 0) continue;
    Config smaller = config;
    smaller.train.micro_batch_size = size;
    if (is_valid(smaller, ranks)) all.push_back(std::move(smaller));
  }
  return all;
}

std::vector<Config> larger_tensor_parallel(const Config& config, int ranks) {
  constexpr std::int64_t kJoinedByNvlink = 8;
  std::vector<Config> all;
  const ParallelismConfig& now = config.parallelism;
  for (std::int64_t size = 2 * now.tensor_parallel_size; size <= std::min<std::int64_t>(kJoinedByNvlink, ranks);
       size += now.tensor_parallel_size) {
    Config larger = config;
    larger.parallelism.tensor_parallel_size = size;
    if (now.data_parallel_size > 0) larger.parallelism.data_parallel_size = ranks / size;
    if (now.zero_group_size == now.data_parallel_size) larger.parallelism.zero_group_size = 0;  // of all, as before
    larger.parallelism.sequence_parallel = true;
    if (!is_valid(larger, ranks)) larger.parallelism.sequence_parallel = now.sequence_parallel;
    if (is_valid(larger, ranks)) all.push_back(std::move(larger));
  }
  return all;
}

std::int64_t most_resident_layers(const Config& config, int ranks, const Card& card) {
  const auto fits = [&](std::int64_t layers) {
    Config resolved = config;
    resolved.parallelism.zero_resident_layers = layers;
    resolve_defaults(resolved, ranks);
    return fullest_rank(resolved, card.sm).estimate.total_bytes() + kPlanTolerance <= card.bytes;
  };
  std::int64_t most = 0, too_many = config.model.num_layers + 1;
  while (too_many - most > 1) {
    const std::int64_t middle = (most + too_many) / 2;
    (fits(middle) ? most : too_many) = middle;
  }
  // More may fit where a few more do not: a slot that no layer is left for saves a block. There are two, and each
  // further layer takes at least half a block.
  for (std::int64_t layers = std::min(most + 4, config.model.num_layers); layers > most; --layers)
    if (fits(layers)) return layers;
  return most;
}

PlanChange cheapest_change(const Config& config, int ranks, const Card& card, bool may_offload) {
  PlanChange least;
  for (const Candidate& candidate : all_candidates(for_card(config, card.sm), ranks, may_offload)) {
    Config resolved = candidate.config;
    resolve_defaults(resolved, ranks);
    MemoryEstimate estimate = plan_memory(resolved, 0, card.sm);
    // The others need about as much: of a combination that is too large the first rank is enough.
    if (estimate.total_bytes() <= card.bytes) estimate = fullest_rank(resolved, card.sm).estimate;
    const std::int64_t bytes = estimate.total_bytes();
    if (least.bytes > 0 && least.bytes <= bytes) continue;
    least = {bytes <= card.bytes, changed_keys(config, candidate.config), bytes, estimate.host_bytes()};
    if (bytes + kPlanTolerance <= card.bytes) break;
  }
  return least;
}

}  // namespace trainer
