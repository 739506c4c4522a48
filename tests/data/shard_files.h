// Makes shards, good and bad, without the code under test.
#pragma once
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/runtime/check.h"

namespace trainer::testing {

/// A folder of its own for a test, gone with it.
class TempFolder {
 public:
  TempFolder();
  ~TempFolder();
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  std::string operator/(const std::string& name) const { return (path_ / name).native(); }
  std::string path() const { return path_.native(); }

 private:
  std::filesystem::path path_;
};

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

void write_file(const std::string& path, const std::string& bytes);
std::string read_file(const std::string& path);

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

/// The message of the Error that `call` throws; a failure when it throws none or another exit code.
std::string error_of(const std::function<void()>& call, ExitCode code = ExitCode::data);

/// True when every part occurs in the text.
::testing::AssertionResult mentions(const std::string& text, const std::vector<std::string>& parts);

}  // namespace trainer::testing
