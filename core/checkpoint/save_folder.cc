#include "core/checkpoint/save_folder.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <random>
#include <string_view>

#include "core/checkpoint/file_io.h"

namespace trainer::checkpoint {
namespace {

namespace fs = std::filesystem;

enum class Role { published, temporary, replaced, latest_temporary };

struct Entry {
  std::string name;
  Role role;
  std::string published_name;  // the name it has, had or would get
};

bool is_step_name(std::string_view name) {
  return name.size() >= 13 && name.starts_with("step_") &&
         name.find_first_not_of("0123456789", 5) == std::string_view::npos;
}

std::optional<Entry> entry_of(const std::string& name) {
  if (is_step_name(name)) return Entry{name, Role::published, name};
  constexpr std::size_t kTail = 5 + 16;  // ".tmp-" and 16 digits
  if (!name.starts_with('.') || name.size() <= 1 + kTail) return std::nullopt;
  const std::string base = name.substr(1, name.size() - 1 - kTail);
  const std::string_view tail = std::string_view(name).substr(1 + base.size());
  if (tail.find_first_not_of("0123456789abcdef", 5) != std::string_view::npos) return std::nullopt;
  const bool temporary = tail.starts_with(".tmp-");
  if (!temporary && !tail.starts_with(".old-")) return std::nullopt;
  if (base == "latest" && temporary) return Entry{name, Role::latest_temporary, ""};
  if (!is_step_name(base)) return std::nullopt;
  return Entry{name, temporary ? Role::temporary : Role::replaced, base};
}

std::vector<Entry> entries_of(const std::string& save_dir) {
  std::vector<Entry> entries;
  std::error_code error;
  for (fs::directory_iterator at(save_dir, error), end; !error && at != end; at.increment(error))
    if (auto entry = entry_of(at->path().filename().string())) entries.push_back(std::move(*entry));
  if (error && error != std::errc::no_such_file_or_directory) fail_errno("list", save_dir, error.value());
  return entries;
}

std::string unique_suffix() {
  std::random_device random;
  return fmt::format("{:08x}{:08x}", random(), random());
}

std::string hidden_path(const std::string& save_dir, const std::string& name, const char* role) {
  return fmt::format("{}/.{}.{}-{}", save_dir, name, role, unique_suffix());
}

void rename_path(const std::string& from, const std::string& to) {
  if (std::rename(from.c_str(), to.c_str()) != 0) fail_errno("rename to", to, errno);
}

/// The temporary folder takes the place of a checkpoint, whose content is then worthless.
void replace(const std::string& temporary, const std::string& path, const std::string& save_dir) {
  if (::renameat2(AT_FDCWD, temporary.c_str(), AT_FDCWD, path.c_str(), RENAME_EXCHANGE) == 0) {
    sync_folder(save_dir);
    remove_temporary(temporary);
    return;
  }
  if (errno != EINVAL && errno != ENOSYS && errno != ENOTSUP) fail_errno("replace", path, errno);
  // A file system without exchange: the old one stays complete, and findable, under a third name until the new one is
  // in place.
  const std::string old = hidden_path(save_dir, fs::path(path).filename().string(), "old");
  rename_path(path, old);
  if (std::rename(temporary.c_str(), path.c_str()) != 0) {
    const int error = errno;
    rename_path(old, path);
    fail_errno("rename to", path, error);
  }
  sync_folder(save_dir);
  remove_temporary(old);
}

}  // namespace

std::string step_name(std::int64_t step) {
  return fmt::format("step_{:08}", step);
}

std::string make_temporary(const std::string& save_dir, std::int64_t step) {
  std::error_code error;
  fs::create_directories(save_dir, error);
  if (error) fail_errno("make the folder", save_dir, error.value());
  std::string path = hidden_path(save_dir, step_name(step), "tmp");
  if (::mkdir(path.c_str(), 0777) != 0) fail_errno("make the folder", path, errno);
  return path;
}

std::vector<std::string> clean_leftovers(const std::string& save_dir) {
  std::vector<std::string> problems;
  for (const Entry& entry : entries_of(save_dir)) {
    if (entry.role == Role::published) continue;
    const fs::path path = fs::path(save_dir) / entry.name, published = fs::path(save_dir) / entry.published_name;
    std::error_code error;
    if (entry.role == Role::replaced && !fs::exists(published))
      fs::rename(path, published, error);
    else
      fs::remove_all(path, error);
    if (error) problems.push_back(fmt::format("cannot clean up {}: {}", path.string(), error.message()));
  }
  return problems;
}

std::string publish(const std::string& temporary, const std::string& save_dir, std::int64_t step) {
  std::string path = save_dir + "/" + step_name(step);
  if (std::rename(temporary.c_str(), path.c_str()) != 0) {
    if (errno != ENOTEMPTY && errno != EEXIST) fail_errno("rename to", path, errno);
    replace(temporary, path, save_dir);
  }
  sync_folder(save_dir);
  return path;
}

void set_latest(const std::string& save_dir, std::int64_t step) {
  const std::string temporary = hidden_path(save_dir, "latest", "tmp");
  try {
    write_text(temporary, step_name(step) + "\n");
    rename_path(temporary, save_dir + "/latest");
  } catch (const IoError&) {
    remove_temporary(temporary);
    throw;
  }
  sync_folder(save_dir);
}

std::string read_latest(const std::string& save_dir) {
  try {
    std::string text = read_text(save_dir + "/latest");
    text.erase(std::min(text.find_first_of("\r\n "), text.size()));
    return text;
  } catch (const IoError&) {
    return "";
  }
}

std::vector<std::string> list_checkpoints(const std::string& save_dir) {
  std::vector<std::string> paths;
  for (const Entry& entry : entries_of(save_dir))
    if (entry.role == Role::published || entry.role == Role::replaced)
      paths.push_back((fs::path(save_dir) / entry.name).string());
  std::sort(paths.begin(), paths.end());
  return paths;
}

void remove_checkpoint(const std::string& path) {
  const fs::path folder(path);
  const std::string temporary = hidden_path(folder.parent_path().string(), folder.filename().string(), "tmp");
  rename_path(path, temporary);
  remove_temporary(temporary);
}

void remove_temporary(const std::string& path) noexcept {
  std::error_code error;
  fs::remove_all(path, error);
}

}  // namespace trainer::checkpoint
