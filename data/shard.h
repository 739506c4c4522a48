// One token shard: a file of token ids in any of the formats of docs/data.md, memory-mapped.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

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
  std::optional<std::int64_t> vocab_size;  // what the file says it was made for
};

/// Maps a shard and checks its structure. Throws Error(data) naming the file, the numbers and the remedy.
TokenShard open_shard(const std::string& path, DataFormat format);

/// Throws Error(data) when the shard cannot belong to a model with `vocab_size` tokens: it was made for more of them,
/// or its type holds fewer and the file does not say that it was made for fewer (larger ids would have wrapped
/// unseen).
void check_vocabulary(const TokenShard& shard, std::int64_t vocab_size);

/// Tokens [first, first + count) of the shard, as TokenDataset::read.
void read_shard(const TokenShard& shard, std::int64_t first, std::int64_t count, std::int64_t vocab_size,
                std::int32_t* ids, std::uint8_t* mask);

}  // namespace trainer
