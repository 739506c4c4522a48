#include "core/train/reporting/append_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "core/runtime/check.h"

namespace trainer {

namespace {

int open_to_append(const std::string& path) {
  return open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
}

}  // namespace

AppendFile::AppendFile(std::string path) : path_(std::move(path)) {
  file_ = open_to_append(path_);
  if (file_ < 0) fail(ExitCode::other, "cannot open '{}': {}", path_, std::strerror(errno));
}

AppendFile::~AppendFile() {
  close(file_);
}

void AppendFile::append(std::string record) {
  if (waiting_.size() == kMostWaiting) {
    waiting_.pop_front();
    ++lost_;
  }
  waiting_.push_back(std::move(record));
  retry();
}

bool AppendFile::there() {
  struct stat now {};
  if (fstat(file_, &now) != 0 || now.st_nlink > 0) return true;
  const int again = open_to_append(path_);
  if (again < 0) {
    problem_ = fmt::format("it was removed: {}", std::strerror(errno));
    return false;
  }
  close(file_);
  file_ = again;
  return true;
}

void AppendFile::retry() {
  problem_.clear();
  if (!waiting_.empty() && !there()) return;
  for (; !waiting_.empty(); waiting_.pop_front()) {
    struct stat before {};
    const bool known = fstat(file_, &before) == 0;
    if (write(waiting_.front())) continue;
    problem_ = std::strerror(errno);
    // A torn record would spoil the ones behind it. What is no file on a disk cannot be cut, and need not be.
    if (known) {
      [[maybe_unused]] const int cut = ftruncate(file_, before.st_size);
    }
    return;
  }
}

bool AppendFile::write(const std::string& record) const {
  for (std::size_t at = 0; at < record.size();) {
    const ssize_t written = ::write(file_, record.data() + at, record.size() - at);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    at += static_cast<std::size_t>(written);
  }
  return true;
}

}  // namespace trainer
