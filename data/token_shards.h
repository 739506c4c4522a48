// Token shards: files of token ids, memory-mapped and seen as one long sequence. docs/data.md has the formats.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "core/config/config.h"
#include "data/shard.h"

namespace trainer {

/// What a whole pass over a dataset finds.
struct DatasetSummary {
  std::int64_t tokens = 0;
  std::int64_t target_tokens = 0;  // tokens whose loss mask is not zero
  std::int32_t largest_id = 0;
};

/// An ordered set of shards. Reading is const and may happen from any thread.
class TokenDataset {
 public:
  /// Opens files, folders (their .h5, .hdf5 and .bin files) and patterns (*, ?, [...]), sorted by path, for a model
  /// with `vocab_size` tokens. Throws Error(data) naming the file and what is wrong with it: nothing matches, a file
  /// twice, an unknown, damaged or truncated file, an empty shard, a shard of a larger vocabulary, a type too narrow.
  /// With `documents` also a shard that does not say where they begin.
  static TokenDataset open(const std::vector<std::string>& patterns, DataFormat format, std::int64_t vocab_size,
                           bool documents = false);

  std::int64_t num_tokens() const { return ends_.back(); }
  const std::vector<TokenShard>& shards() const { return shards_; }

  /// Tokens [first, first + count) of the whole sequence into `ids` [count]; with `mask` [count] 1 where the token
  /// counts as a target and 0 where it does not (1 in shards without a loss mask). Throws Error(data) naming shard,
  /// token and id when an id is not below vocab_size, so that no such id ever reaches an embedding.
  void read(std::int64_t first, std::int64_t count, std::int32_t* ids, std::uint8_t* mask) const;

  /// Appends `at` + i for every i < `count` such that a document begins at token first + i of the whole sequence;
  /// nothing when it was opened without `documents`. Binary search: the starts stay in the mapped files.
  void document_starts(std::int64_t first, std::int64_t count, std::int64_t at,
                       std::vector<std::int32_t>& starts) const;

  /// Reads everything once, with the checks of read().
  DatasetSummary scan() const;

 private:
  TokenDataset(std::vector<TokenShard> shards, std::int64_t vocab_size);

  /// Calls use(shard, its first token that is meant, how many) for the shards of tokens [first, first + count).
  template <class Use>
  void each_part(std::int64_t first, std::int64_t count, const Use& use) const;

  std::vector<TokenShard> shards_;
  std::vector<std::int64_t> ends_;  // tokens up to and including each shard
  std::int64_t vocab_size_;
};

}  // namespace trainer
