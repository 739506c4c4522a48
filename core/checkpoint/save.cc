#include "core/checkpoint/save.h"

#include <fmt/format.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <limits>
#include <memory>

#include "core/checkpoint/agreement.h"
#include "core/checkpoint/file_io.h"
#include "core/checkpoint/manifest.h"
#include "core/checkpoint/piece_file.h"
#include "core/checkpoint/save_folder.h"
#include "parallel/host_exchange.h"

namespace trainer {
namespace {

namespace fs = std::filesystem;
using namespace checkpoint;

// HDF5's own bytes for a dataset with two attributes and its name in model.h5, from above, and for an empty file.
constexpr std::int64_t kBytesPerPiece = 2048;
constexpr std::int64_t kBytesPerFile = 65536;

/// What a message about a failed write says about space.
struct Space {
  std::int64_t wanted = 0;
  std::int64_t free = 0;  // when the save began
  std::string text() const {
    const std::string available =
        free == std::numeric_limits<std::int64_t>::max() ? "an unknown number" : std::to_string(free);
    return fmt::format("the checkpoint needs {} bytes, {} were free", wanted, available);
  }
};

/// Runs `work` and adds the space to the message of an IoError.
template <class Work>
void with_space(const Space& space, Work work) {
  try {
    work();
  } catch (const IoError& error) {
    throw IoError(fmt::format("{} ({})", error.what(), space.text()));
  }
}

/// Cuts a box into parts of at most `max_elements`, which are contiguous in its row-major order: whole rows, or part of
/// one row where even that is too long.
template <class Visit>
void for_each_part(const Box& box, std::int64_t max_elements, Visit visit) {
  const std::int64_t cols = std::min(box.cols, max_elements);
  const std::int64_t rows =
      cols < box.cols ? 1 : std::max<std::int64_t>(1, max_elements / std::max<std::int64_t>(1, cols));
  for (std::int64_t row = 0; row < box.rows; row += rows)
    for (std::int64_t col = 0; col < box.cols; col += cols)
      visit(Box{box.row0 + row, std::min(rows, box.rows - row), box.col0 + col, std::min(cols, box.cols - col)},
            row * box.cols + col);
}

std::int64_t max_elements(const Piece& piece, std::int64_t max_piece_bytes) {
  return std::max<std::int64_t>(1, max_piece_bytes / dtype_size(piece.dtype));
}

/// Writes the pieces of this rank, and returns their description for rank 0.
std::string write_pieces(const SaveRequest& request, const std::string& folder, int rank, const FaultPlan& fault) {
  std::int64_t buffer_bytes = 0;
  for (const Piece& piece : request.pieces) {
    TRAINER_CHECK(piece.read, "piece of '{}' without a read function", piece.tensor);
    TRAINER_CHECK(piece.global.dims == 2 || piece.global.cols == 1, "'{}': a vector with {} columns", piece.tensor,
                  piece.global.cols);
    const std::int64_t part = std::min(piece.box.numel(), max_elements(piece, request.max_piece_bytes));
    buffer_bytes = std::max(buffer_bytes, part * dtype_size(piece.dtype));
  }
  if (!fs::is_directory(folder))
    throw IoError(fmt::format("{} is not visible to this rank: all ranks must share its file system", folder));
  const auto buffer = std::make_unique_for_overwrite<std::byte[]>(static_cast<std::size_t>(buffer_bytes));
  PieceFile file(folder, fmt::format("rank-{:04}.h5", rank));
  for (const Piece& piece : request.pieces)
    for_each_part(piece.box, max_elements(piece, request.max_piece_bytes), [&](const Box& part, std::int64_t first) {
      fault.at("save.write");
      piece.read(first, part.numel(), buffer.get());
      file.append(piece, part, buffer.get());
    });
  const StoredFile stored = file.finish();
  return pieces_text(file.tensors(), stored);
}

std::string utc_text(std::int64_t nanoseconds) {
  const auto seconds = static_cast<std::time_t>(nanoseconds / 1'000'000'000);
  std::tm utc{};
  gmtime_r(&seconds, &utc);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:09}Z", utc.tm_year + 1900, utc.tm_mon + 1, utc.tm_mday,
                     utc.tm_hour, utc.tm_min, utc.tm_sec, nanoseconds % 1'000'000'000);
}

/// The inverse of utc_text; 0 for any other text.
std::int64_t parse_utc(const std::string& text) {
  std::tm utc{};
  const char* rest = strptime(text.c_str(), "%Y-%m-%dT%H:%M:%S.", &utc);
  if (rest == nullptr) return 0;
  return timegm(&utc) * 1'000'000'000 + std::strtoll(rest, nullptr, 10);
}

/// Now, or where the clock was set back just after the last save: `load: auto` and keep_last go by this time.
std::string time_of_save(const std::string& save_dir) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  std::int64_t time = std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
  if (const std::string latest = read_latest(save_dir); !latest.empty()) {
    const std::string manifest = fmt::format("{}/{}/{}", save_dir, latest, kManifestName);
    try {
      time = std::max(time, parse_utc(parse_manifest(read_text(manifest), manifest).saved_at) + 1);
    } catch (const Error&) {  // gone or damaged: no checkpoint that could be the newest
    }
  }
  return utc_text(time);
}

/// Rank 0: from the descriptions of all ranks to a complete folder. Returns its bytes.
std::int64_t write_manifest(const SaveRequest& request, const std::string& save_dir, const std::string& folder,
                            const std::vector<std::string>& descriptions) {
  Manifest manifest;
  manifest.step = request.step;
  manifest.saved_at = time_of_save(save_dir);
  manifest.world_size = static_cast<int>(descriptions.size());
  manifest.layout = request.layout;
  manifest.versions = request.versions;
  manifest.config_yaml = request.config_yaml;
  manifest.state_json = request.state_json.empty() ? "{}" : request.state_json;
  for (const std::string& description : descriptions) add_pieces(manifest, description);
  manifest.view.name = kViewName;
  check_manifest(manifest);
  manifest.view = write_view(folder, manifest);
  const std::string text = manifest_text(manifest);
  write_text(folder + "/" + kManifestName, text);
  sync_folder(folder);
  auto bytes = manifest.view.bytes + static_cast<std::int64_t>(text.size());
  for (const StoredFile& file : manifest.files) bytes += file.bytes;
  return bytes;
}

/// Rank 0: an empty temporary folder, once there is room for what all ranks want to write.
std::string begin_save(const std::string& save_dir, std::int64_t step, Space& space,
                       std::vector<std::string>& warnings) {
  warnings = clean_leftovers(save_dir);
  space.free = free_bytes(save_dir);
  if (space.wanted > space.free)
    throw IoError(fmt::format("cannot write a checkpoint to {}: not enough space", save_dir));
  return make_temporary(save_dir, step);
}

/// Rank 0: removes all but the newest keep_last checkpoints that have a sound manifest, and the newest good one.
void prune(const SaveRequest& request, const std::string& save_dir, const std::string& just_written,
           std::vector<std::string>& warnings) {
  struct Kept {
    std::string saved_at, path;
    bool good;
  };
  std::vector<Kept> checkpoints;
  for (const std::string& path : list_checkpoints(save_dir)) {
    try {
      const std::string manifest = path + "/" + kManifestName;
      const Manifest found = parse_manifest(read_text(manifest), manifest);
      checkpoints.push_back({found.saved_at, path, request.is_good && request.is_good(found.state_json)});
    } catch (const Error& error) {
      warnings.push_back(fmt::format("not removed, because it cannot be read: {}", error.what()));
    }
  }
  std::sort(checkpoints.begin(), checkpoints.end(),
            [](const Kept& a, const Kept& b) { return a.saved_at > b.saved_at; });
  const std::string latest = save_dir + "/" + read_latest(save_dir);
  const auto newest_good =
      std::find_if(checkpoints.begin(), checkpoints.end(), [](const Kept& checkpoint) { return checkpoint.good; });
  auto old = checkpoints.begin() + std::min(request.keep_last, std::ssize(checkpoints));
  for (; old != checkpoints.end(); ++old)
    if (old != newest_good && old->path != just_written && old->path != latest) remove_checkpoint(old->path);
}

/// Rank 0, after the checkpoint has its name: what goes wrong here is a warning, for the checkpoint is complete.
void finish_save(const SaveRequest& request, const std::string& save_dir, const std::string& path,
                 std::vector<std::string>& warnings) {
  const auto try_to = [&](const auto& work) {
    try {
      work();
    } catch (const std::exception& error) {
      warnings.push_back(error.what());
    }
  };
  try_to([&] { set_latest(save_dir, request.step); });
  if (request.keep_last > 0) try_to([&] { prune(request, save_dir, path, warnings); });
}

}  // namespace

SaveResult save_checkpoint(const SaveRequest& request, Communicator& host_world, const FaultPlan& fault) {
  const auto begin = std::chrono::steady_clock::now();
  const bool first = host_world.rank() == 0;
  const std::string save_dir = fs::absolute(request.save_dir).lexically_normal().string();
  SaveResult result;
  Space space;
  std::string temporary;
  space.wanted = sum_over_ranks(host_world, estimate_bytes(request.pieces));
  try {
    run_together(host_world, [&] {
      fault.at("save.begin");
      space.free = free_bytes(save_dir);
      if (first) with_space(space, [&] { temporary = begin_save(save_dir, request.step, space, result.warnings); });
    });
    temporary = broadcast_string(host_world, temporary, 0);
    std::string description;
    run_together(host_world, [&] {
      with_space(space, [&] { description = write_pieces(request, temporary, host_world.rank(), fault); });
    });
    const std::vector<std::string> descriptions = gather_strings(host_world, description);
    run_together(host_world, [&] {
      if (first) with_space(space, [&] { result.bytes = write_manifest(request, save_dir, temporary, descriptions); });
      fault.at("save.publish");
    });
    run_together(host_world, [&] {
      if (first) with_space(space, [&] { result.path = publish(temporary, save_dir, request.step); });
    });
  } catch (...) {
    if (first && !temporary.empty()) remove_temporary(temporary);
    throw;
  }
  if (first) finish_save(request, save_dir, result.path, result.warnings);
  result.path = broadcast_string(host_world, result.path, 0);
  result.bytes = sum_over_ranks(host_world, result.bytes);
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return result;
}

std::int64_t estimate_bytes(const std::vector<Piece>& pieces) {
  std::int64_t bytes = kBytesPerFile;
  for (const Piece& piece : pieces)
    for_each_part(piece.box, max_elements(piece, SaveRequest{}.max_piece_bytes), [&](const Box& part, std::int64_t) {
      bytes += part.numel() * dtype_size(piece.dtype) + kBytesPerPiece;
    });
  return bytes;
}

std::int64_t free_bytes(const std::string& path) {
  fs::path folder = fs::absolute(path);
  struct statvfs status {};
  while (::statvfs(folder.c_str(), &status) != 0 && folder.has_relative_path()) folder = folder.parent_path();
  if (status.f_blocks == 0 || status.f_frsize == 0) return std::numeric_limits<std::int64_t>::max();
  return static_cast<std::int64_t>(status.f_bavail * status.f_frsize);
}

}  // namespace trainer
