#include "data/token_shards.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "core/runtime/check.h"
#include "data/files.h"

namespace trainer {
namespace {

std::vector<std::string_view> extensions_of(DataFormat format) {
  switch (format) {
    case DataFormat::hdf5:
      return {".h5", ".hdf5"};
    case DataFormat::bin_uint16:
    case DataFormat::bin_uint32:
      return {".bin"};
    case DataFormat::automatic:
      break;
  }
  return {".h5", ".hdf5", ".bin"};
}

}  // namespace

TokenDataset TokenDataset::open(const std::vector<std::string>& patterns, DataFormat format, std::int64_t vocab_size,
                                bool documents) {
  constexpr std::int64_t limit = std::numeric_limits<std::int32_t>::max();
  if (vocab_size < 1 || vocab_size > limit)
    fail(ExitCode::config, "model.vocab_size is {}: token ids are 32-bit, so that it must lie in 1 .. {}", vocab_size,
         limit);
  std::vector<TokenShard> shards;
  for (const std::string& path : expand_patterns(patterns, files_with_extension(extensions_of(format)))) {
    shards.push_back(open_shard(path, format, documents));
    check_vocabulary(shards.back(), vocab_size);
  }
  return {std::move(shards), vocab_size};
}

TokenDataset::TokenDataset(std::vector<TokenShard> shards, std::int64_t vocab_size)
    : shards_(std::move(shards)), vocab_size_(vocab_size) {
  std::int64_t end = 0;
  for (const TokenShard& shard : shards_) ends_.push_back(end += shard.count);
}

template <class Use>
void TokenDataset::each_part(std::int64_t first, std::int64_t count, const Use& use) const {
  TRAINER_CHECK(first >= 0 && count >= 0 && first <= num_tokens() - count, "tokens {}+{} of {}", first, count,
                num_tokens());
  auto shard = static_cast<std::size_t>(std::upper_bound(ends_.begin(), ends_.end(), first) - ends_.begin());
  while (count > 0) {
    const std::int64_t part = std::min(count, ends_[shard] - first);
    use(shards_[shard], first - (ends_[shard] - shards_[shard].count), part);
    first += part;
    count -= part;
    ++shard;
  }
}

void TokenDataset::read(std::int64_t first, std::int64_t count, std::int32_t* ids, std::uint8_t* mask) const {
  each_part(first, count, [&](const TokenShard& shard, std::int64_t offset, std::int64_t part) {
    read_shard(shard, offset, part, vocab_size_, ids, mask);
    ids += part;
    if (mask != nullptr) mask += part;
  });
}

void TokenDataset::document_starts(std::int64_t first, std::int64_t count, std::int64_t at,
                                   std::vector<std::int32_t>& starts) const {
  each_part(first, count, [&](const TokenShard& shard, std::int64_t offset, std::int64_t part) {
    append_document_starts(shard, offset, part, at, starts);
    at += part;
  });
}

DatasetSummary TokenDataset::scan() const {
  constexpr std::int64_t piece = 1 << 20;
  std::vector<std::int32_t> ids(piece);
  std::vector<std::uint8_t> mask(piece);
  DatasetSummary summary;
  while (summary.tokens < num_tokens()) {
    const std::int64_t count = std::min(piece, num_tokens() - summary.tokens);
    read(summary.tokens, count, ids.data(), mask.data());
    summary.tokens += count;
    summary.target_tokens += std::count(mask.begin(), mask.begin() + count, 1);
    summary.largest_id = std::max(summary.largest_id, *std::max_element(ids.begin(), ids.begin() + count));
  }
  return summary;
}

}  // namespace trainer
