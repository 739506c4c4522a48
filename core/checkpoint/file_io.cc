#include "core/checkpoint/file_io.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "core/checkpoint/checksum.h"

namespace trainer::checkpoint {

void fail_errno(const char* action, const std::string& path, int error) {
  throw IoError(fmt::format("cannot {} {}: {}", action, path, std::generic_category().message(error)));
}

FileDescriptor::FileDescriptor(const std::string& path, int flags)
    : path_(path), fd_(::open(path.c_str(), flags | O_CLOEXEC | O_NONBLOCK, 0666)) {  // no pipe makes it wait
  if (fd_ < 0) fail_errno((flags & O_ACCMODE) == O_RDONLY ? "open" : "write", path, errno);
}

void FileDescriptor::close() noexcept {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

std::int64_t FileDescriptor::size() const {
  struct stat status {};
  if (::fstat(fd_, &status) != 0) fail_errno("inspect", path_, errno);
  return status.st_size;
}

void FileDescriptor::read_at(void* to, std::int64_t bytes, std::int64_t offset) const {
  auto* at = static_cast<char*>(to);
  while (bytes > 0) {
    const ssize_t got = ::pread(fd_, at, static_cast<std::size_t>(bytes), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_errno("read", path_, errno);
    if (got == 0) throw IoError(fmt::format("{} is cut off: {} bytes are missing at {}", path_, bytes, offset));
    at += got;
    offset += got;
    bytes -= got;
  }
}

void FileDescriptor::write_all(std::string_view data) const {
  while (!data.empty()) {
    const ssize_t written = ::write(fd_, data.data(), data.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail_errno("write", path_, errno);
    data.remove_prefix(static_cast<std::size_t>(written));
  }
}

void FileDescriptor::sync() const {
  while (::fsync(fd_) != 0)
    if (errno != EINTR) fail_errno("sync", path_, errno);
}

std::string checksum_outside(const FileDescriptor& file, const std::vector<Extent>& extents) {
  std::string outside;
  std::int64_t position = 0;
  const auto append_until = [&](std::int64_t end) {
    const std::size_t filled = outside.size();
    TRAINER_CHECK(end >= position, "extents overlap at byte {}", end);
    outside.resize(filled + static_cast<std::size_t>(end - position));
    file.read_at(outside.data() + filled, end - position, position);
  };
  for (const Extent& extent : extents) {
    append_until(extent.offset);
    position = extent.offset + extent.bytes;
  }
  append_until(file.size());
  return checksum_hex(outside.data(), outside.size());
}

std::string read_text(const std::string& path) {
  const FileDescriptor file(path, O_RDONLY);
  std::string text(static_cast<std::size_t>(file.size()), '\0');
  file.read_at(text.data(), static_cast<std::int64_t>(text.size()), 0);
  return text;
}

void write_text(const std::string& path, std::string_view text) {
  const FileDescriptor file(path, O_WRONLY | O_CREAT | O_EXCL);
  file.write_all(text);
  file.sync();
}

void sync_folder(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) fail_errno("open", path, errno);
  const int result = ::fsync(fd);
  const int error = errno;
  ::close(fd);
  // Some network file systems have no fsync for folders: their names are durable at once.
  if (result != 0 && error != EINVAL && error != ENOTSUP) fail_errno("sync", path, error);
}

}  // namespace trainer::checkpoint
