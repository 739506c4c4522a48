#include "data/shard.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <filesystem>

#include "core/runtime/check.h"
#include "data/hdf5_shard.h"

namespace trainer {
namespace {

static_assert(std::endian::native == std::endian::little, "shards are little-endian and read as they are");

// llm.c's .bin: a header of 256 int32 (magic, version, tokens, zeros), then the ids. Tools disagree about the version,
// so that the type follows from the magic alone.
constexpr std::int64_t kHeaderBytes = 256 * 4;
constexpr std::int32_t kMagicUint16 = 20240520;
constexpr std::int32_t kMagicUint32 = 20240801;

struct LlmcHeader {
  IdType type = IdType::u16;
  std::int64_t count = 0;
};

std::optional<LlmcHeader> llmc_header(const MappedFile& file) {
  std::int32_t words[3];
  if (file.size() < kHeaderBytes) return std::nullopt;
  std::memcpy(words, file.data(), sizeof words);
  if (words[0] != kMagicUint16 && words[0] != kMagicUint32) return std::nullopt;
  return LlmcHeader{words[0] == kMagicUint16 ? IdType::u16 : IdType::u32, words[2]};
}

TokenShard open_llmc_shard(const std::string& path) {
  TokenShard shard;
  shard.path = path;
  shard.file = MappedFile(path);
  const std::optional<LlmcHeader> header = llmc_header(shard.file);
  if (!header)
    fail(ExitCode::data,
         "{}: has no llm.c header (the first int32 is neither {} nor {}). If it holds bare token ids, set data.format: "
         "bin_uint16 or bin_uint32",
         path, kMagicUint16, kMagicUint32);
  if (header->count == 0) fail(ExitCode::data, "{}: is empty (its header counts 0 tokens)", path);
  const std::int64_t wanted = kHeaderBytes + header->count * id_bytes(header->type);
  if (header->count < 0 || wanted != shard.file.size())
    fail(ExitCode::data, "{}: its header counts {} tokens of {}, which makes {} bytes, but the file has {}", path,
         header->count, id_type_name(header->type), wanted, shard.file.size());
  shard.type = header->type;
  shard.count = header->count;
  shard.tokens = shard.file.data() + kHeaderBytes;
  return shard;
}

TokenShard open_raw_shard(const std::string& path, IdType type) {
  TokenShard shard;
  shard.path = path;
  shard.file = MappedFile(path);
  const std::int64_t size = shard.file.size(), width = id_bytes(type);
  if (size % width != 0)
    fail(ExitCode::data, "{}: its {} bytes are not a whole number of {} ids", path, size, id_type_name(type));
  const std::optional<LlmcHeader> header = llmc_header(shard.file);
  if (header && kHeaderBytes + header->count * id_bytes(header->type) == size)
    fail(ExitCode::data, "{}: begins with an llm.c header, which would be read as token ids: set data.format: auto",
         path);
  shard.type = type;
  shard.count = size / width;
  shard.tokens = shard.file.data();
  return shard;
}

/// Copies `count` ids and returns the largest, seen as unsigned: a negative id is larger than any vocabulary.
template <class T>
std::uint32_t copy_ids(const std::byte* from, std::int64_t count, std::int32_t* ids) {
  std::uint32_t largest = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    T id;
    std::memcpy(&id, from + i * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
    largest = std::max(largest, static_cast<std::uint32_t>(id));
    ids[i] = static_cast<std::int32_t>(id);
  }
  return largest;
}

std::uint32_t copy_ids(IdType type, const std::byte* from, std::int64_t count, std::int32_t* ids) {
  switch (type) {
    case IdType::u8:
      return copy_ids<std::uint8_t>(from, count, ids);
    case IdType::u16:
      return copy_ids<std::uint16_t>(from, count, ids);
    case IdType::u32:
    case IdType::i32:
      break;
  }
  return copy_ids<std::uint32_t>(from, count, ids);
}

[[noreturn]] void fail_bad_id(const TokenShard& shard, std::int64_t first, std::int64_t vocab_size,
                              const std::int32_t* ids) {
  std::int64_t at = 0;
  while (static_cast<std::uint32_t>(ids[at]) < vocab_size) ++at;
  const std::int64_t id =
      shard.type == IdType::i32 ? std::int64_t{ids[at]} : std::int64_t{static_cast<std::uint32_t>(ids[at])};
  fail(ExitCode::data,
       "{}: token {} has id {}, but model.vocab_size is {}: ids go from 0 to {}. Was the shard made with another "
       "tokenizer?",
       shard.path, first + at, id, vocab_size, vocab_size - 1);
}

}  // namespace

std::int64_t id_bytes(IdType type) {
  constexpr std::int64_t bytes[] = {1, 2, 4, 4};
  return bytes[static_cast<std::size_t>(type)];
}

std::int64_t id_capacity(IdType type) {
  constexpr std::int64_t capacities[] = {1LL << 8, 1LL << 16, 1LL << 32, 1LL << 31};
  return capacities[static_cast<std::size_t>(type)];
}

std::string_view id_type_name(IdType type) {
  constexpr std::string_view names[] = {"uint8", "uint16", "uint32", "int32"};
  return names[static_cast<std::size_t>(type)];
}

TokenShard open_shard(const std::string& path, DataFormat format, bool documents) {
  const std::string extension = std::filesystem::path(path).extension().native();
  const bool automatic = format == DataFormat::automatic;
  if (format == DataFormat::hdf5 || (automatic && (extension == ".h5" || extension == ".hdf5")))
    return open_hdf5_shard(path, documents);
  if (documents)
    fail(ExitCode::data,
         "{}: only HDF5 shards hold where documents begin, which data.intra_document_attention needs: prepare the text "
         "again with 'trainer data prepare'",
         path);
  if (format == DataFormat::bin_uint16) return open_raw_shard(path, IdType::u16);
  if (format == DataFormat::bin_uint32) return open_raw_shard(path, IdType::u32);
  if (extension == ".bin") return open_llmc_shard(path);
  fail(
      ExitCode::data,
      "{}: data.format auto knows .h5, .hdf5 and .bin by their extension, not '{}': rename the file or set data.format",
      path, extension);
}

void check_vocabulary(const TokenShard& shard, std::int64_t vocab_size) {
  const std::int64_t capacity = id_capacity(shard.type);
  const std::string_view type = id_type_name(shard.type);
  if (shard.vocab_size && *shard.vocab_size > vocab_size)
    fail(ExitCode::data,
         "{}: was made for a vocabulary of {} tokens (attribute vocab_size), but model.vocab_size is {}", shard.path,
         *shard.vocab_size, vocab_size);
  if (shard.vocab_size && *shard.vocab_size > capacity)
    fail(ExitCode::data,
         "{}: was made for a vocabulary of {} tokens (attribute vocab_size), but stores ids as {}, which holds {}: "
         "larger ids have wrapped. Write it again as uint32",
         shard.path, *shard.vocab_size, type, capacity);
  if (!shard.vocab_size && vocab_size > capacity)
    fail(ExitCode::data,
         "{}: stores ids as {}, which holds {}, but model.vocab_size is {}: larger ids would have wrapped. Write it "
         "again as uint32; if it was made for fewer tokens, say so in an HDF5 shard with the attribute vocab_size",
         shard.path, type, capacity, vocab_size);
}

void read_shard(const TokenShard& shard, std::int64_t first, std::int64_t count, std::int64_t vocab_size,
                std::int32_t* ids, std::uint8_t* mask) {
  const std::uint32_t largest = copy_ids(shard.type, shard.tokens + first * id_bytes(shard.type), count, ids);
  if (count > 0 && largest >= vocab_size) fail_bad_id(shard, first, vocab_size, ids);
  if (mask == nullptr) return;
  for (std::int64_t i = 0; i < count; ++i)
    mask[i] = shard.mask == nullptr || shard.mask[first + i] != std::byte{0} ? 1 : 0;
}

std::int64_t document_offset(const TokenShard& shard, std::int64_t index) {
  std::int64_t offset;
  std::memcpy(&offset, shard.offsets + index * static_cast<std::int64_t>(sizeof offset), sizeof offset);
  return offset;
}

void append_document_starts(const TokenShard& shard, std::int64_t first, std::int64_t count, std::int64_t at,
                            std::vector<std::int32_t>& starts) {
  std::int64_t low = 0, high = shard.documents;  // the first document that begins at `first` or behind
  while (low < high) {
    const std::int64_t middle = low + (high - low) / 2;
    if (document_offset(shard, middle) < first)
      low = middle + 1;
    else
      high = middle;
  }
  for (; low < shard.documents && document_offset(shard, low) < first + count; ++low)
    starts.push_back(static_cast<std::int32_t>(at + document_offset(shard, low) - first));
}

}  // namespace trainer
