// verify_checkpoint: every byte of the files of the ranks against the manifest.
#include <fcntl.h>

#include "core/checkpoint/agreement.h"
#include "core/checkpoint/file_io.h"
#include "core/checkpoint/load.h"
#include "core/checkpoint/piece_reader.h"

namespace trainer {
namespace {

using namespace checkpoint;

/// Everything of `file` that is no piece: HDF5's own structures, which other readers depend on.
void verify_rest(const std::string& folder, const StoredFile& file, const std::vector<PieceRef>& pieces) {
  std::vector<Extent> extents;
  extents.reserve(pieces.size());
  for (const PieceRef& ref : pieces) extents.push_back({ref.piece->offset, ref.piece->bytes});
  const std::string path = folder + "/" + file.name;
  const FileDescriptor descriptor(path, O_RDONLY);
  if (descriptor.size() != file.bytes)
    fail(ExitCode::checkpoint, "{} has {} bytes, {} were saved", path, descriptor.size(), file.bytes);
  if (checksum_outside(descriptor, extents) != file.checksum)
    fail(ExitCode::checkpoint, "{}: damaged outside the tensors, its checksum differs", path);
}

}  // namespace

std::optional<std::string> verify_checkpoint(const CheckpointInfo& info, Communicator& host_world) {
  const auto by_file = pieces_by_file(info.manifest);
  std::int64_t total = 1;
  for (const auto& [name, pieces] : by_file)
    for (const PieceRef& ref : pieces) total += ref.piece->bytes;
  const auto failed = first_error(host_world, [&] {
    // Rank r takes the pieces that begin in part r of all bytes: equal work, and few files for each rank.
    PieceReader reader(info.path);
    std::int64_t position = 0;
    const auto mine = [&] {
      return static_cast<int>(static_cast<double>(position) / static_cast<double>(total) * host_world.size()) ==
             host_world.rank();
    };
    for (const StoredFile& file : info.manifest.files) {
      const auto found = by_file.find(file.name);
      const std::vector<PieceRef>& pieces = found == by_file.end() ? std::vector<PieceRef>() : found->second;
      if (mine()) verify_rest(info.path, file, pieces);
      for (const PieceRef& ref : pieces) {
        if (mine()) reader.read(*ref.tensor, *ref.piece);
        position += ref.piece->bytes;
      }
    }
  });
  if (!failed) return std::nullopt;
  if (failed->error.code() != ExitCode::checkpoint) throw Error(failed->error);
  return failed->error.what();
}

}  // namespace trainer
