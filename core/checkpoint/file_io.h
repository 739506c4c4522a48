// Plain files, with errors that say what and where. Everything here throws IoError.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/runtime/check.h"

namespace trainer::checkpoint {

/// A file could not be read or written: Error(checkpoint) of a kind of its own, so that a save can add how much space
/// there was.
class IoError : public Error {
 public:
  explicit IoError(const std::string& what) : Error(ExitCode::checkpoint, what) {}
};
/// Throws IoError "cannot <action> <path>: <text of errno>".
[[noreturn]] void fail_errno(const char* action, const std::string& path, int error);

class FileDescriptor {
 public:
  FileDescriptor() = default;
  /// `flags` of open(2); files are made with the user's umask.
  FileDescriptor(const std::string& path, int flags);
  ~FileDescriptor() { close(); }
  FileDescriptor(FileDescriptor&& other) noexcept : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    close();
    path_ = std::move(other.path_);
    fd_ = std::exchange(other.fd_, -1);
    return *this;
  }

  std::int64_t size() const;
  /// Exactly `bytes` from `offset`.
  void read_at(void* to, std::int64_t bytes, std::int64_t offset) const;
  void write_all(std::string_view data) const;
  void sync() const;

 private:
  void close() noexcept;

  std::string path_;
  int fd_ = -1;
};

struct Extent {
  std::int64_t offset = 0;
  std::int64_t bytes = 0;
};
/// The checksum of all bytes of the file outside `extents`, in file order. Extents are sorted and do not overlap.
std::string checksum_outside(const FileDescriptor& file, const std::vector<Extent>& extents);

std::string read_text(const std::string& path);
/// A new file; it is on the disk when this returns (its name is, once the folder is synced).
void write_text(const std::string& path, std::string_view text);
/// Makes the names in a folder durable.
void sync_folder(const std::string& path);

}  // namespace trainer::checkpoint
