#include "core/train/run_folder.h"

#include <filesystem>
#include <string_view>
#include <system_error>

#include "core/runtime/check.h"
#include "core/train/folder_lock.h"

namespace trainer {
namespace {

namespace fs = std::filesystem;

std::string_view kind_of(fs::file_type type) {
  switch (type) {
    case fs::file_type::regular:
      return "a file";
    case fs::file_type::directory:
      return "a folder";
    case fs::file_type::block:
    case fs::file_type::character:
      return "a device";
    case fs::file_type::fifo:
      return "a pipe";
    case fs::file_type::socket:
      return "a socket";
    case fs::file_type::not_found:
      return "missing";
    default:
      return "out of reach";
  }
}

void check_place(const std::string& path, fs::file_type right) {
  std::error_code error;
  const fs::file_type there = fs::symlink_status(path, error).type(), behind = fs::status(path, error).type();
  if (there == fs::file_type::none) return;  // cannot be asked: whoever writes there says what is wrong
  const bool link = there == fs::file_type::symlink;
  // A file that a link names is made behind it; a folder is not.
  const bool may_be_missing = !link || right == fs::file_type::regular;
  if (behind == right || (behind == fs::file_type::not_found && may_be_missing)) return;
  std::string what(kind_of(behind));
  if (link) what = fmt::format("a link to '{}', which is {}", fs::read_symlink(path, error).string(), what);
  fail(ExitCode::config,
       "train.output_dir: '{}' is {}; right would be {}, or nothing: remove it, or take another folder", path, what,
       kind_of(right));
}

}  // namespace

std::string log_path(const std::string& output_dir, int rank) {
  return fmt::format("{}/logs/rank-{:04}.log", output_dir, rank);
}

void check_place_of_file(const std::string& path) {
  check_place(path, fs::file_type::regular);
}

void check_run_folder(const std::string& output_dir) {
  for (const char* name : {"metrics.jsonl", "config.resolved.yaml"})
    for (const char* suffix : {"", ".tmp"}) check_place_of_file(fmt::format("{}/{}{}", output_dir, name, suffix));
  check_place_of_file(fmt::format("{}/{}", output_dir, kLockName));
  for (const char* name : {"logs", "tb"}) check_place(fmt::format("{}/{}", output_dir, name), fs::file_type::directory);
}

}  // namespace trainer
