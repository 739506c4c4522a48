// Token shards in HDF5 files.
#pragma once
#include <string>

#include "data/shard.h"

namespace trainer {

/// open_shard for an HDF5 file. The library is used only here, to find where the contiguous datasets lie in the file;
/// reading goes through the mapping, so that it never waits for the library's lock (a checkpoint may be written at the
/// same time).
TokenShard open_hdf5_shard(const std::string& path, bool documents);

}  // namespace trainer
