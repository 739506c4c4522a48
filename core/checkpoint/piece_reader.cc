#include "core/checkpoint/piece_reader.h"

#include <fcntl.h>

#include "core/checkpoint/checksum.h"

namespace trainer::checkpoint {

const std::byte* PieceReader::read(const std::string& tensor, const StoredPiece& piece) {
  if (piece.bytes > capacity_) {
    buffer_ = std::make_unique_for_overwrite<std::byte[]>(static_cast<std::size_t>(piece.bytes));
    capacity_ = piece.bytes;
  }
  const auto fail_here = [&](const std::string& reason) {
    fail(ExitCode::checkpoint, "{}/{}: '{}', {}: {}", folder_, piece.file, tensor, to_text(piece.box), reason);
  };
  try {
    if (open_name_ != piece.file) {
      open_name_.clear();
      file_ = FileDescriptor(folder_ + "/" + piece.file, O_RDONLY);
      open_name_ = piece.file;
    }
    file_.read_at(buffer_.get(), piece.bytes, piece.offset);
  } catch (const IoError& error) {
    fail_here(error.what());
  }
  if (checksum_hex(buffer_.get(), static_cast<std::size_t>(piece.bytes)) != piece.checksum)
    fail_here("damaged, its checksum differs");
  return buffer_.get();
}

}  // namespace trainer::checkpoint
