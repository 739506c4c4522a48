// Makes shards, good and bad, without the code under test.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace trainer::testing {

/// What an HDF5 shard of a test shall be; ids are converted to `type` by a plain cast.
struct Hdf5Shard {
  enum class Type : std::uint8_t { u8, i8, u16, u16_big_endian, u32, i32, i64, f32 };
  Type type = Type::u16;
  std::vector<std::int64_t> ids;
  std::vector<std::uint8_t> mask;                      // empty: none
  std::optional<std::vector<std::int64_t>> documents;  // dataset doc_offsets
  std::optional<std::int64_t> vocab_size;
  bool chunked = false;
  bool two_dimensional = false;
  bool never_written = false;
  std::string tokens_name = "tokens";
};
void write_hdf5(const std::string& path, const Hdf5Shard& shard);

/// The bytes of ids stored as T.
template <class T>
std::string bytes_of(const std::vector<std::int64_t>& ids) {
  std::string bytes;
  for (const std::int64_t id : ids) {
    const T value = static_cast<T>(id);
    bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  return bytes;
}
/// llm.c's header of 256 int32.
std::string llmc_header(std::int32_t magic, std::int32_t count);

}  // namespace trainer::testing
