// Finds, verifies and loads checkpoints, into any layout.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/checkpoint/manifest.h"
#include "core/checkpoint/piece.h"
#include "parallel/communicator.h"

namespace trainer {

struct CheckpointInfo {
  std::string path;
  Manifest manifest;  // step, state_json, config_yaml, versions, layout, tensors...
};

using WarningSink = std::function<void(const std::string&)>;

/// Collective. `load`: "none": nothing; "auto": the newest usable checkpoint of save_dir, nothing when there is no
/// checkpoint; otherwise the path of a checkpoint folder. Newest is the one saved last, by the time in the manifest,
/// not by name or by `latest`: a run that went back to an older step goes on from where it was, not from the branch
/// that it left. What is returned has been verified as a whole (verify_checkpoint). In auto mode damaged checkpoints
/// are reported to `warn` (called on rank 0) by name and reason, and the one before is taken. Throws Error(checkpoint)
/// when a named one is damaged or missing, and in auto mode when there are checkpoints but none of them is usable.
std::optional<CheckpointInfo> find_checkpoint(const std::string& save_dir, const std::string& load,
                                              Communicator& host_world, const WarningSink& warn);

/// One process: reads and checks the manifest and the sizes of the files, not their contents. Throws Error(checkpoint).
CheckpointInfo read_checkpoint_info(const std::string& path);

/// One process: the checkpoint of save_dir that was saved last among those that read_checkpoint_info() accepts; the
/// others are reported to `warn`. Nothing when there is none.
std::optional<CheckpointInfo> newest_checkpoint(const std::string& save_dir, const WarningSink& warn);

/// Collective. The ranks share all bytes of the checkpoint out, read them and compare checksums: every changed bit in
/// the manifest and in the files of the ranks is found. Costs one read of the checkpoint, at the speed of the disk and
/// of XXH3 (several GB/s a rank). Returns what is damaged (the same text on all ranks), or nothing when all is sound.
std::optional<std::string> verify_checkpoint(const CheckpointInfo& info, Communicator& host_world);

/// Collective. Fills the boxes that this rank wants from whatever stored pieces overlap them. Each stored piece that is
/// needed is read once, as a whole, and verified before any of its values is handed to write(); needs 64 MiB of host
/// memory. Missing tensors, other shapes or other types: Error(checkpoint) naming both sides, before any write(). On an
/// error on one rank all ranks throw; what was written until then stays written.
void load_pieces(const CheckpointInfo& info, const std::vector<Piece>& wanted, Communicator& host_world);

}  // namespace trainer
