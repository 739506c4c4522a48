// One token shard: a file of token ids in any of the formats of docs/data.md, memory-mapped.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/config/config.h"
#include "data/files.h"

namespace trainer {

/// How a shard stores an id; little-endian.
enum class IdType : std::uint8_t { u8, u16, u32, i32 };
std::int64_t id_bytes(IdType type);
/// Ids that the type can tell apart.
std::int64_t id_capacity(IdType type);
/// "uint8", "uint16", "uint32", "int32".
std::string_view id_type_name(IdType type);

struct TokenShard {
  std::string path;
  MappedFile file;
  IdType type = IdType::u16;
  std::int64_t count = 0;                  // tokens
  const std::byte* tokens = nullptr;       // [count] of `type`, inside the mapping, of any alignment
  const std::byte* mask = nullptr;         // [count] bytes inside the mapping; null: every token is a target
  std::int64_t documents = 0;              // that begin in this shard; 0 also where nobody asked for them
  const std::byte* offsets = nullptr;      // [documents] 64-bit integers inside the mapping: their first tokens
  std::optional<std::int64_t> vocab_size;  // what the file says it was made for
};

/// Maps a shard and checks its structure; with `documents` also where documents begin, in one pass over their starts,
/// which must be there then. Throws Error(data) naming the file, the numbers and the remedy.
TokenShard open_shard(const std::string& path, DataFormat format, bool documents = false);

/// Throws Error(data) when the shard cannot belong to a model with `vocab_size` tokens: it was made for more of them,
/// or its type holds fewer and the file does not say that it was made for fewer (larger ids would have wrapped
/// unseen).
void check_vocabulary(const TokenShard& shard, std::int64_t vocab_size);

/// Tokens [first, first + count) of the shard, as TokenDataset::read.
void read_shard(const TokenShard& shard, std::int64_t first, std::int64_t count, std::int64_t vocab_size,
                std::int32_t* ids, std::uint8_t* mask);

/// First token of document `index` of the shard.
std::int64_t document_offset(const TokenShard& shard, std::int64_t index);

/// Appends `at` + i for every i < `count` such that a document begins at token `first` + i of the shard, in O(log
/// documents) and the number of those.
void append_document_starts(const TokenShard& shard, std::int64_t first, std::int64_t count, std::int64_t at,
                            std::vector<std::int32_t>& starts);

}  // namespace trainer
