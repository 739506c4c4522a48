// The manifest of a checkpoint: what is stored where, with checksums. docs/checkpoint-format.md describes the file.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/checkpoint/piece.h"

namespace trainer {

constexpr int kCheckpointFormatVersion = 1;
constexpr const char* kManifestName = "manifest.json";
constexpr const char* kViewName = "model.h5";

/// A box of a tensor as it lies in a file: contiguous, row-major, little-endian.
struct StoredPiece {
  std::string file;         // a name in the checkpoint folder
  std::string dataset;      // its HDF5 path, for readers that use HDF5
  std::int64_t offset = 0;  // bytes from the start of the file
  std::int64_t bytes = 0;
  Box box;
  std::string checksum;  // checksum_hex of the bytes
};

struct StoredTensor {
  Dtype dtype = Dtype::f32;
  TensorShape shape;
  std::vector<StoredPiece> pieces;  // they tile the tensor exactly once
};

struct StoredFile {
  std::string name;
  std::int64_t bytes = 0;
  std::string checksum;  // checksum_hex of all bytes that belong to no piece, in file order
};

struct Manifest {
  std::int64_t step = 0;
  std::string saved_at;  // UTC, "2024-01-31T23:59:59.123456789Z": text order is time order
  int world_size = 1;
  std::string layout;
  std::string versions;
  std::string config_yaml;
  std::string state_json;
  std::vector<StoredFile> files;
  StoredFile view;
  std::map<std::string, StoredTensor> tensors;
};

struct PieceRef {
  const std::string* tensor;
  const StoredPiece* piece;
};
/// The pieces of each file in the order of their offsets. The references are valid as long as the manifest.
std::map<std::string, std::vector<PieceRef>> pieces_by_file(const Manifest& manifest);

/// Checks names (they form a tree of HDF5 groups), shapes, and that the pieces of every tensor tile it exactly once and
/// lie within their files without sharing bytes. Throws Error(checkpoint) naming the tensor.
void check_manifest(const Manifest& manifest);

/// The text of manifest.json. Throws Error(checkpoint) when state_json is not JSON.
std::string manifest_text(const Manifest& manifest);
/// The inverse. Throws Error(checkpoint) when the text is damaged, of another version or inconsistent; `path` is for
/// the message.
Manifest parse_manifest(std::string_view text, const std::string& path);

/// The pieces of one rank as JSON text, for sending to rank 0.
std::string pieces_text(const std::map<std::string, StoredTensor>& tensors, const StoredFile& file);
/// Adds what another rank sent. Throws Error(checkpoint) when two ranks disagree about a tensor's shape or type.
void add_pieces(Manifest& manifest, std::string_view text);

}  // namespace trainer
