// What may lie in a run folder when a run starts there.
#pragma once
#include <string>

namespace trainer {

/// Of the log of a rank.
std::string log_path(const std::string& output_dir, int rank);

/// Throws Error(config) that names the path when something else than a regular file, or a link to one, lies where
/// `path` is going to be written. A device or a pipe would take what is written and keep nothing, or keep whoever
/// opens it waiting for ever.
void check_place_of_file(const std::string& path);
/// The same for all that rank 0 writes in `output_dir`, logs aside: its files, and its folders, which may be links to
/// folders. Nothing is opened or made; the folder itself may be missing.
void check_run_folder(const std::string& output_dir);

}  // namespace trainer
