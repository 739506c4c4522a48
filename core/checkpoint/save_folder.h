// The names in a checkpoint folder, and how they change: by one rename at a time, each made durable. Rank 0 only.
//   step_NNNNNNNN             a checkpoint
//   .step_NNNNNNNN.tmp-HEX    being written or being removed: worthless to everybody else
//   .step_NNNNNNNN.old-HEX    a checkpoint while one of the same step takes its name
//   latest                    text: the name of the last one saved; .latest.tmp-HEX before its rename
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace trainer::checkpoint {

std::string step_name(std::int64_t step);

/// Makes the folder and in it an empty temporary one for this step; returns the latter's path. Throws IoError.
std::string make_temporary(const std::string& save_dir, std::int64_t step);

/// Removes what dead saves left, and gives a checkpoint its name back that lost it. Best effort: returns what could not
/// be done.
std::vector<std::string> clean_leftovers(const std::string& save_dir);

/// Gives the finished temporary folder its name and returns its path. A checkpoint with this name is replaced; at every
/// moment one of the two is complete, and list_checkpoints finds it. Throws IoError.
std::string publish(const std::string& temporary, const std::string& save_dir, std::int64_t step);

/// Lets `latest` name this step. Throws IoError.
void set_latest(const std::string& save_dir, std::int64_t step);
/// What `latest` names; empty when it cannot be read.
std::string read_latest(const std::string& save_dir);

/// Paths of all folders that may be checkpoints, by their names; empty when there is no such folder.
std::vector<std::string> list_checkpoints(const std::string& save_dir);

/// Takes the name from a checkpoint, then removes it. Throws IoError.
void remove_checkpoint(const std::string& path);

/// Removes a temporary folder, best effort.
void remove_temporary(const std::string& path) noexcept;

}  // namespace trainer::checkpoint
