// One job at a time writes to a folder.
#pragma once
#include <string>
#include <string_view>

namespace trainer {

/// Of the file in the folder that is locked; it stays there.
inline constexpr const char* kLockName = ".lock";

class FolderLock {
 public:
  /// Holds `folder`, which must exist and is the value of `key`, until this object or the process ends, however it
  /// ends. Throws Error(config) that names the process which holds it. On a file system without locks nothing is held.
  FolderLock(const std::string& folder, std::string_view key);
  ~FolderLock();
  FolderLock(FolderLock&& other) noexcept;
  FolderLock& operator=(FolderLock&&) = delete;

 private:
  int file_ = -1;
};

}  // namespace trainer
