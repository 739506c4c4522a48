#include "core/train/same_data.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/runtime/check.h"
#include "core/runtime/counted.h"
#include "parallel/host_exchange.h"

namespace trainer {
namespace {

constexpr std::int64_t kPlaces = 16, kTokensAtAPlace = 64;

/// FNV-1a (Fowler, Noll, Vo) over tokens, and with `documents` their starts, at places that are spread over the first
/// `tokens`.
std::uint64_t sample_hash(const TokenDataset& data, std::int64_t tokens, bool documents) {
  const std::int64_t count = std::min(kTokensAtAPlace, tokens);
  std::vector<std::int32_t> ids(static_cast<std::size_t>(count));
  std::vector<std::uint8_t> mask(ids.size());
  std::vector<std::int32_t> starts;
  std::uint64_t hash = 0xcbf29ce484222325u;
  const auto add = [&](std::uint64_t value) { hash = (hash ^ value) * 0x100000001b3u; };
  for (std::int64_t place = 0; place < kPlaces; ++place) {
    const std::int64_t first = (tokens - count) * place / (kPlaces - 1);
    data.read(first, count, ids.data(), mask.data());
    for (std::size_t i = 0; i < ids.size(); ++i) add(2 * static_cast<std::uint64_t>(ids[i]) + mask[i]);
    if (!documents) continue;
    starts.clear();
    data.document_starts(first, count, 0, starts);
    for (const std::int32_t start : starts) add(static_cast<std::uint64_t>(start));
  }
  return hash;
}

}  // namespace

std::string token_sample(const TokenDataset& data, std::int64_t tokens) {
  return fmt::format("{:016x}", sample_hash(data, tokens, false));
}

void check_ranks_see_same_data(const TokenDataset& data, const std::string& key, Communicator& world) {
  if (world.size() == 1) return;
  const std::string mine =
      fmt::format("{} tokens in {}, sample {:016x}", data.num_tokens(), counted(std::ssize(data.shards()), "file"),
                  sample_hash(data, data.num_tokens(), true));
  const std::vector<std::string> all = gather_strings(world, mine);
  for (std::size_t rank = 1; rank < all.size(); ++rank)
    if (all[rank] != all[0])
      fail(ExitCode::data, "{}: rank {} sees other data than rank 0: {} against {}", key, rank, all[rank], all[0]);
}

}  // namespace trainer
