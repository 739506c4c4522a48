#include "core/train/folder_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <utility>

#include "core/runtime/check.h"
#include "core/runtime/environment.h"

namespace trainer {

FolderLock::FolderLock(const std::string& folder, std::string_view key) {
  const std::string path = folder + "/" + kLockName;
  file_ = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (file_ < 0) return;  // whoever writes to the folder says what is wrong with it
  if (flock(file_, LOCK_EX | LOCK_NB) != 0) {
    const bool held = errno == EWOULDBLOCK;
    std::array<char, 128> holder{};
    if (held && read(file_, holder.data(), holder.size() - 1) < 0) holder[0] = '\0';
    close(std::exchange(file_, -1));
    if (held)
      fail(ExitCode::config, "another job writes to '{}' ({}): give each its own {}", folder, holder.data(), key);
    return;
  }
  const std::string text = fmt::format("host {} process {}", host_name(), getpid());
  // For that message only: a full disk is no reason to stop here.
  if (ftruncate(file_, 0) != 0 || pwrite(file_, text.data(), text.size(), 0) < 0) return;
}

FolderLock::~FolderLock() {
  if (file_ >= 0) close(file_);
}

FolderLock::FolderLock(FolderLock&& other) noexcept : file_(std::exchange(other.file_, -1)) {}

}  // namespace trainer
