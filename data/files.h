// Finding and mapping input files.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace trainer {

using FolderLister = std::function<std::vector<std::string>(const std::string& folder)>;

/// The files that are meant by `patterns`, sorted by path: a file stands for itself, a folder for what
/// `files_of_folder` says, anything else is a shell pattern (*, ?, [...]). Throws Error(data) when
/// a pattern matches nothing or a file is meant twice.
std::vector<std::string> expand_patterns(const std::vector<std::string>& patterns, const FolderLister& files_of_folder);

/// A folder stands for its files with one of these extensions; subfolders and hidden files are not entered, and
/// Error(data) is thrown when there is none.
FolderLister files_with_extension(std::vector<std::string_view> extensions);

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
