// Finding and mapping input files.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace trainer {

/// The files that are meant by `patterns`, sorted by path: a file stands for itself, a folder for its files with one of
/// `folder_extensions` (subfolders and hidden files are not entered), anything else is a shell pattern (*, ?, [...]).
/// Throws Error(data) when one of them gives nothing or a file is meant twice.
std::vector<std::string> expand_patterns(const std::vector<std::string>& patterns,
                                         const std::vector<std::string_view>& folder_extensions);

/// A whole regular file, mapped read-only.
class MappedFile {
 public:
  MappedFile() = default;
  /// Throws Error(data) naming the file when it cannot be opened, is not a regular file, or is empty.
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  const std::byte* data() const { return data_; }
  std::int64_t size() const { return size_; }

 private:
  const std::byte* data_ = nullptr;
  std::int64_t size_ = 0;
};

}  // namespace trainer
