// Reads stored pieces, each as a whole, and lets nothing through that is not what was saved.
#pragma once
#include <cstddef>
#include <memory>
#include <string>

#include "core/checkpoint/file_io.h"
#include "core/checkpoint/manifest.h"

namespace trainer::checkpoint {

/// Reads by offset, without HDF5: the manifest says where every piece lies, no lock of HDF5 is taken, and damaged HDF5
/// structures cannot do harm. Quickest when the pieces of a file follow one another.
class PieceReader {
 public:
  explicit PieceReader(std::string folder) : folder_(std::move(folder)) {}

  /// The elements of the piece, row-major, valid until the next call. Throws Error(checkpoint) naming the file, the
  /// tensor and the box when they cannot be read or their checksum differs.
  const std::byte* read(const std::string& tensor, const StoredPiece& piece);

 private:
  std::string folder_;
  std::string open_name_;
  FileDescriptor file_;
  std::unique_ptr<std::byte[]> buffer_;
  std::int64_t capacity_ = 0;
};

}  // namespace trainer::checkpoint
