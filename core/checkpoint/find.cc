// find_checkpoint: rank 0 proposes, all ranks verify, the first sound one is taken.
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include "core/checkpoint/agreement.h"
#include "core/checkpoint/checksum.h"
#include "core/checkpoint/file_io.h"
#include "core/checkpoint/load.h"
#include "core/checkpoint/save_folder.h"
#include "core/runtime/counted.h"
#include "parallel/host_exchange.h"

namespace trainer {
namespace {

namespace fs = std::filesystem;
using namespace checkpoint;

std::string manifest_path(const std::string& path) {
  return path + "/" + kManifestName;
}

void check_sizes(const CheckpointInfo& info) {
  for (const StoredFile& file : info.manifest.files) {
    const std::string path = info.path + "/" + file.name;
    struct stat status {};
    if (::stat(path.c_str(), &status) != 0) fail_errno("find", path, errno);
    if (status.st_size != file.bytes)
      fail(ExitCode::checkpoint, "{} has {} bytes, {} were saved", path, status.st_size, file.bytes);
  }
}

/// Our loading does not depend on the view, so damage there is only worth a word.
void check_view(const CheckpointInfo& info, const WarningSink& warn) {
  const StoredFile& view = info.manifest.view;
  const std::string path = info.path + "/" + view.name;
  try {
    const std::string text = read_text(path);
    if (checksum_hex(text.data(), text.size()) == view.checksum) return;
    warn(fmt::format("{} is damaged: other programs may see wrong values in it; loading does not need it", path));
  } catch (const IoError& error) {
    warn(fmt::format("{}; loading does not need it", error.what()));
  }
}

/// Rank 0 reads the manifest, the others get its text.
CheckpointInfo share_info(const std::string& path, Communicator& world) {
  std::string text;
  run_together(world, [&] {
    if (world.rank() == 0) text = read_text(manifest_path(path));
  });
  const std::string shared_path = broadcast_string(world, path, 0);
  text = broadcast_string(world, text, 0);
  return {shared_path, parse_manifest(text, manifest_path(shared_path))};
}

struct Candidates {
  std::vector<std::string> newest_first;
  int seen = 0;
};

Candidates list_candidates(const std::string& save_dir, const WarningSink& warn) {
  struct Dated {
    std::string saved_at, path;
  };
  std::vector<Dated> usable;
  Candidates result;
  for (const std::string& path : list_checkpoints(save_dir)) {
    ++result.seen;
    try {
      usable.push_back({read_checkpoint_info(path).manifest.saved_at, path});
    } catch (const Error& error) {
      warn(fmt::format("checkpoint {} is not usable: {}", fs::path(path).filename().string(), error.what()));
    }
  }
  std::sort(usable.begin(), usable.end(), [](const Dated& a, const Dated& b) { return a.saved_at > b.saved_at; });
  for (const Dated& dated : usable) result.newest_first.push_back(dated.path);
  const std::string latest = read_latest(save_dir);
  if (!latest.empty() && !fs::exists(fs::path(save_dir) / latest))
    warn(fmt::format("{}/latest names {}, which is not there", save_dir, latest));
  return result;
}

std::optional<CheckpointInfo> find_newest(const std::string& save_dir, Communicator& world, const WarningSink& warn) {
  const bool first = world.rank() == 0;
  Candidates candidates;
  run_together(world, [&] {
    if (first) candidates = list_candidates(save_dir, warn);
  });
  for (std::size_t next = 0;; ++next) {
    const std::string path =
        broadcast_string(world, next < candidates.newest_first.size() ? candidates.newest_first[next] : "", 0);
    if (path.empty()) break;
    CheckpointInfo info = share_info(path, world);
    const std::optional<std::string> damage = verify_checkpoint(info, world);
    if (!damage) return info;
    if (first) warn(fmt::format("checkpoint {} is damaged: {}", fs::path(path).filename().string(), *damage));
  }
  run_together(world, [&] {
    if (candidates.seen > 0)
      fail(ExitCode::checkpoint,
           "of {} in {} none is usable; checkpoint.load: none begins a new run, after you have moved "
           "them away",
           counted(candidates.seen, "checkpoint"), save_dir);
  });
  return std::nullopt;
}

CheckpointInfo find_named(const std::string& path, Communicator& world) {
  const bool first = world.rank() == 0;
  std::string folder;
  run_together(world, [&] {
    if (!first) return;
    folder = fs::absolute(path).lexically_normal().string();
    if (!fs::is_directory(folder)) fail(ExitCode::checkpoint, "checkpoint.load: there is no folder {}", folder);
    if (!fs::exists(manifest_path(folder)))
      for (const std::string& place : {folder, folder + "/checkpoints"})  // of checkpoints, or of a run
        if (const std::string latest = read_latest(place); !latest.empty())
          fail(ExitCode::checkpoint, "checkpoint.load: {} is no checkpoint; did you mean {}/{}?", folder, place,
               latest);
    read_checkpoint_info(folder);
  });
  CheckpointInfo info = share_info(folder, world);
  if (const std::optional<std::string> damage = verify_checkpoint(info, world))
    fail(ExitCode::checkpoint, "checkpoint {} is damaged: {}", folder, *damage);
  return info;
}

}  // namespace

CheckpointInfo read_checkpoint_info(const std::string& path) {
  CheckpointInfo info{path, parse_manifest(read_text(manifest_path(path)), manifest_path(path))};
  check_sizes(info);
  return info;
}

std::optional<CheckpointInfo> find_checkpoint(const std::string& save_dir, const std::string& load,
                                              Communicator& host_world, const WarningSink& warn) {
  if (load == "none") return std::nullopt;
  std::optional<CheckpointInfo> info;
  if (load == "auto")
    info = find_newest(fs::absolute(save_dir).lexically_normal().string(), host_world, warn);
  else
    info = find_named(load, host_world);
  if (info && host_world.rank() == 0) check_view(*info, warn);
  return info;
}

std::optional<CheckpointInfo> newest_checkpoint(const std::string& save_dir, const WarningSink& warn) {
  const Candidates candidates = list_candidates(save_dir, warn);
  if (candidates.newest_first.empty()) return std::nullopt;
  return read_checkpoint_info(candidates.newest_first.front());
}

}  // namespace trainer
