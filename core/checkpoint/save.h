// Saves a checkpoint: all of it, or nothing that anybody could take for one.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/checkpoint/piece.h"
#include "core/runtime/fault.h"
#include "parallel/communicator.h"

namespace trainer {

struct SaveRequest {
  std::string save_dir;  // the same folder for all ranks; made when it is missing
  std::int64_t step = 0;
  std::vector<Piece> pieces;  // of this rank; every element of every tensor is in exactly one piece of one rank
  std::string state_json;     // any JSON value; rank 0's is stored (so are the following texts)
  std::string config_yaml;
  std::string versions;
  std::string layout;          // how the run was spread over ranks, for people: "dp=2 tp=2 zero=1"
  std::int64_t keep_last = 0;  // 0: keep all
  /// Whether a checkpoint with this state_json is one to go back to: the newest such is kept beyond keep_last. Without
  /// it no checkpoint is.
  std::function<bool(const std::string& state_json)> is_good;
  std::int64_t max_piece_bytes = std::int64_t{64} << 20;  // pieces are cut to this, between rows where possible
};

struct SaveResult {
  std::string path;
  std::int64_t bytes = 0;  // of all ranks
  double seconds = 0;
  std::vector<std::string> warnings;  // rank 0: the checkpoint is complete, something around it is not
};

/// Collective over all ranks. Writes save_dir/step_NNNNNNNN, replaces one of the same step, lets `latest` name it, and
/// then removes all but the newest keep_last checkpoints (and the newest good one), and what dead saves left behind.
/// Needs max_piece_bytes of host memory a rank. When anything goes wrong on one rank, all ranks throw the same Error
/// (checkpoint, as a rule) with that rank's message, the temporary folder is gone, and earlier checkpoints and `latest`
/// are as they were.
SaveResult save_checkpoint(const SaveRequest& request, Communicator& host_world, const FaultPlan& fault);

/// Bytes that this rank's pieces take on disk, HDF5's own included (from above).
std::int64_t estimate_bytes(const std::vector<Piece>& pieces);

/// Bytes free for this user on the file system of `path`, or of the nearest folder above it that exists. The largest
/// int64 when the file system does not tell.
std::int64_t free_bytes(const std::string& path);

}  // namespace trainer
