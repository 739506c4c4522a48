#include "data/files.h"

#include <fcntl.h>
#include <glob.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <map>
#include <system_error>
#include <utility>

#include "core/runtime/check.h"

namespace trainer {
namespace {

namespace fs = std::filesystem;

std::string reason(int error) {
  return std::generic_category().message(error);
}

std::vector<std::string> files_of_folder(const std::string& folder, const std::vector<std::string_view>& extensions) {
  std::vector<std::string> files;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    const fs::path& path = entry->path();
    const bool hidden = path.filename().native().front() == '.';
    const bool wanted = std::find(extensions.begin(), extensions.end(), path.extension().native()) != extensions.end();
    if (!hidden && wanted) files.push_back(path.native());
  }
  if (error) fail(ExitCode::data, "{}: the folder cannot be read: {}", folder, error.message());
  if (files.empty()) fail(ExitCode::data, "{}: the folder holds no {} file", folder, fmt::join(extensions, " or "));
  return files;
}

std::vector<std::string> matches_of(const std::string& pattern) {
  glob_t found{};
  const int rc = ::glob(pattern.c_str(), GLOB_NOSORT, nullptr, &found);
  std::vector<std::string> files(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  ::globfree(&found);
  if (rc != 0)
    fail(ExitCode::data, "{}: no such file or folder, and no file matches it as a pattern (working folder {})", pattern,
         fs::current_path().native());
  return files;
}

}  // namespace

FolderLister files_with_extension(std::vector<std::string_view> extensions) {
  return
      [extensions = std::move(extensions)](const std::string& folder) { return files_of_folder(folder, extensions); };
}

std::vector<std::string> expand_patterns(const std::vector<std::string>& patterns,
                                         const FolderLister& files_of_folder) {
  if (patterns.empty()) fail(ExitCode::data, "no data files were given: name files, folders or patterns");
  std::vector<std::string> files;
  for (const std::string& pattern : patterns) {
    std::error_code error;
    const fs::file_status status = fs::status(pattern, error);
    if (status.type() == fs::file_type::none)
      fail(ExitCode::data, "{}: cannot be looked at: {}", pattern, error.message());
    const auto more = fs::is_directory(status) ? files_of_folder(pattern)
                      : fs::exists(status)     ? std::vector<std::string>{pattern}
                                               : matches_of(pattern);
    files.insert(files.end(), more.begin(), more.end());
  }
  std::sort(files.begin(), files.end());
  std::map<std::string, std::string> seen;  // canonical path -> the path given
  for (const std::string& file : files) {
    std::error_code ignored;
    const auto [entry, is_new] = seen.emplace(fs::weakly_canonical(file, ignored).native(), file);
    if (!is_new) fail(ExitCode::data, "{} and {} are the same file: each file may be given once", entry->second, file);
  }
  return files;
}

MappedFile::MappedFile(const std::string& path) {
  // O_NONBLOCK: opening a pipe by mistake must not wait for its writer.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) fail(ExitCode::data, "{}: cannot be opened: {}", path, reason(errno));
  struct stat status {};
  const bool regular = ::fstat(fd, &status) == 0 && S_ISREG(status.st_mode);
  void* memory = MAP_FAILED;
  int error = 0;
  if (regular && status.st_size > 0) {
    memory = ::mmap(nullptr, static_cast<std::size_t>(status.st_size), PROT_READ, MAP_SHARED, fd, 0);
    error = errno;
  }
  ::close(fd);
  if (!regular) fail(ExitCode::data, "{}: is not a regular file", path);
  if (status.st_size == 0) fail(ExitCode::data, "{}: is empty (0 bytes)", path);
  if (memory == MAP_FAILED)
    fail(ExitCode::data, "{}: its {} bytes cannot be memory-mapped: {}", path, status.st_size, reason(error));
  data_ = static_cast<const std::byte*>(memory);
  size_ = status.st_size;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), static_cast<std::size_t>(size_));
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

}  // namespace trainer
