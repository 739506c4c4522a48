// The HDF5 file of one rank, while it is written.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "core/checkpoint/hdf5_id.h"
#include "core/checkpoint/manifest.h"
#include "core/checkpoint/piece.h"

namespace trainer::checkpoint {

/// Each piece is a contiguous dataset of its own with the attributes `box` and `xxh3_128`.
class PieceFile {
 public:
  PieceFile(const std::string& folder, const std::string& name);

  /// Writes box.numel() elements at `data`, a box of piece.tensor. Throws IoError.
  void append(const Piece& piece, const Box& box, const void* data);
  /// Closes the file and waits until it is on the disk.
  StoredFile finish();
  const std::map<std::string, StoredTensor>& tensors() const { return tensors_; }

 private:
  QuietHdf5 quiet_;
  std::string path_, name_;
  NewHdf5File file_;
  Hdf5Id links_, layout_;
  std::vector<Extent> extents_;
  std::map<std::string, StoredTensor> tensors_;
};

/// Writes the file of virtual datasets that shows every tensor of the manifest whole, and says what was written. A
/// reader that lacks a file of pieces sees NaN (integers: the value furthest from 0) in its place.
StoredFile write_view(const std::string& folder, const Manifest& manifest);

}  // namespace trainer::checkpoint
