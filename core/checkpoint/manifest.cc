#include "core/checkpoint/manifest.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "core/checkpoint/checksum.h"
#include "core/runtime/check.h"

namespace trainer {
namespace {

using Json = nlohmann::ordered_json;
using checkpoint::checksum_hex;

constexpr const char* kFormatName = "trainer-checkpoint";
constexpr std::string_view kFirstLineBegin = "{\"checksum\": \"xxh3-128:";
constexpr std::string_view kFirstLineEnd = "\",";

Json json_of(const StoredPiece& piece) {
  const Box& box = piece.box;
  return {{"file", piece.file},   {"dataset", piece.dataset},   {"offset", piece.offset},
          {"bytes", piece.bytes}, {"checksum", piece.checksum}, {"box", {box.row0, box.rows, box.col0, box.cols}}};
}

StoredPiece piece_of(const Json& json) {
  const auto box = json.at("box").get<std::array<std::int64_t, 4>>();
  StoredPiece piece;
  piece.file = json.at("file").get<std::string>();
  piece.dataset = json.at("dataset").get<std::string>();
  piece.offset = json.at("offset").get<std::int64_t>();
  piece.bytes = json.at("bytes").get<std::int64_t>();
  piece.checksum = json.at("checksum").get<std::string>();
  piece.box = {box[0], box[1], box[2], box[3]};
  return piece;
}

Json json_of(const StoredTensor& tensor) {
  Json shape = Json::array({tensor.shape.rows});
  if (tensor.shape.dims == 2) shape.push_back(tensor.shape.cols);
  Json pieces = Json::array();
  for (const StoredPiece& piece : tensor.pieces) pieces.push_back(json_of(piece));
  return {{"dtype", dtype_name(tensor.dtype)}, {"shape", shape}, {"pieces", pieces}};
}

StoredTensor tensor_of(const Json& json) {
  const auto shape = json.at("shape").get<std::vector<std::int64_t>>();
  if (shape.empty() || shape.size() > 2) fail(ExitCode::checkpoint, "a tensor with {} dimensions", shape.size());
  StoredTensor tensor;
  tensor.dtype = dtype_from_name(json.at("dtype").get<std::string>());
  tensor.shape = {static_cast<int>(shape.size()), shape[0], shape.size() == 2 ? shape[1] : 1};
  for (const Json& piece : json.at("pieces")) tensor.pieces.push_back(piece_of(piece));
  return tensor;
}

Json json_of(const StoredFile& file) {
  return {{"name", file.name}, {"bytes", file.bytes}, {"checksum", file.checksum}};
}

StoredFile file_of(const Json& json) {
  return {json.at("name").get<std::string>(), json.at("bytes").get<std::int64_t>(),
          json.at("checksum").get<std::string>()};
}

/// Names become HDF5 paths in model.h5: groups that are not empty, and no tensor inside another.
void check_names(const std::map<std::string, StoredTensor>& tensors) {
  for (const auto& [name, tensor] : tensors) {
    const std::string path = fmt::format("/{}/", name);
    const bool control = std::any_of(name.begin(), name.end(), [](unsigned char c) { return c < 0x20 || c == 0x7F; });
    if (control || path.find("//") != std::string::npos || path.find("/./") != std::string::npos)
      fail(ExitCode::checkpoint, "'{}' cannot be the name of a tensor", name);
    for (std::size_t slash = name.find('/'); slash != std::string::npos; slash = name.find('/', slash + 1))
      if (tensors.count(name.substr(0, slash)) != 0)
        fail(ExitCode::checkpoint, "tensor '{}' is inside tensor '{}'", name, name.substr(0, slash));
  }
}

/// The pieces of a tensor cover it, each element once.
void check_tiling(const std::string& name, const StoredTensor& tensor) {
  const TensorShape& shape = tensor.shape;
  constexpr std::int64_t kLargest = std::numeric_limits<std::int64_t>::max() / 8;
  if (shape.rows < 1 || shape.cols < 1 || shape.rows > kLargest / shape.cols)
    fail(ExitCode::checkpoint, "tensor '{}' has the shape {}", name, to_text(shape));
  std::vector<const StoredPiece*> sorted;
  std::int64_t covered = 0;
  for (const StoredPiece& piece : tensor.pieces) {
    const Box& box = piece.box;
    if (box.row0 < 0 || box.col0 < 0 || box.rows < 1 || box.cols < 1 || box.rows > shape.rows - box.row0 ||
        box.cols > shape.cols - box.col0)
      fail(ExitCode::checkpoint, "tensor '{}' {}: the piece {} is not inside it", name, to_text(shape), to_text(box));
    if (piece.bytes != box.numel() * dtype_size(tensor.dtype))
      fail(ExitCode::checkpoint, "tensor '{}': the piece {} has {} bytes", name, to_text(box), piece.bytes);
    covered += box.numel();
    sorted.push_back(&piece);
  }
  std::sort(sorted.begin(), sorted.end(), [](auto* a, auto* b) { return a->box.row0 < b->box.row0; });
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    const Box& box = sorted[i]->box;
    for (std::size_t j = i + 1; j < sorted.size() && sorted[j]->box.row0 < box.row0 + box.rows; ++j)
      if (intersect(box, sorted[j]->box).numel() > 0)
        fail(ExitCode::checkpoint, "tensor '{}': the pieces {} ({}) and {} ({}) overlap", name, to_text(box),
             sorted[i]->file, to_text(sorted[j]->box), sorted[j]->file);
  }
  if (covered != shape.numel())
    fail(ExitCode::checkpoint, "tensor '{}' {}: the pieces hold {} of {} elements", name, to_text(shape), covered,
         shape.numel());
}

void check_files(const Manifest& manifest) {
  std::set<std::string> names{kManifestName, manifest.view.name};
  for (const StoredFile& file : manifest.files)
    if (file.name.empty() || file.name.find('/') != std::string::npos || !names.insert(file.name).second)
      fail(ExitCode::checkpoint, "'{}' cannot be the name of a file of pieces", file.name);
  const auto by_file = pieces_by_file(manifest);
  for (const auto& [name, pieces] : by_file) {
    const auto file = std::find_if(manifest.files.begin(), manifest.files.end(),
                                   [&, &wanted = name](const StoredFile& f) { return f.name == wanted; });
    if (file == manifest.files.end()) fail(ExitCode::checkpoint, "file '{}' is not in the list of files", name);
    std::int64_t end = 0;
    for (const PieceRef& ref : pieces) {
      if (ref.piece->offset < end || ref.piece->bytes > file->bytes - ref.piece->offset)
        fail(ExitCode::checkpoint, "file '{}': the piece of '{}' at byte {} overlaps another or the end", name,
             *ref.tensor, ref.piece->offset);
      end = ref.piece->offset + ref.piece->bytes;
    }
  }
}

/// The text after the first line, once its checksum is right.
std::string_view checked_body(std::string_view text, const std::string& path) {
  const std::size_t line = kFirstLineBegin.size() + 32 + kFirstLineEnd.size();
  if (text.size() <= line || !text.starts_with(kFirstLineBegin) || text[line] != '\n' ||
      text.substr(line - kFirstLineEnd.size(), kFirstLineEnd.size()) != kFirstLineEnd)
    fail(ExitCode::checkpoint, "{} is damaged or not a manifest: its first line is not a checksum", path);
  const std::string_view body = text.substr(line + 1);
  if (text.substr(kFirstLineBegin.size(), 32) != checksum_hex(body.data(), body.size()))
    fail(ExitCode::checkpoint, "{} is damaged: its checksum differs", path);
  return body;
}

Manifest manifest_of(const Json& json) {
  Manifest manifest;
  manifest.step = json.at("step").get<std::int64_t>();
  manifest.saved_at = json.at("saved_at").get<std::string>();
  manifest.world_size = json.at("world_size").get<int>();
  manifest.layout = json.at("layout").get<std::string>();
  manifest.versions = json.at("versions").get<std::string>();
  manifest.config_yaml = json.at("config").get<std::string>();
  manifest.state_json = json.at("state").dump();
  for (const Json& file : json.at("files")) manifest.files.push_back(file_of(file));
  manifest.view = file_of(json.at("view"));
  for (const auto& [name, tensor] : json.at("tensors").items()) manifest.tensors[name] = tensor_of(tensor);
  return manifest;
}

}  // namespace

std::map<std::string, std::vector<PieceRef>> pieces_by_file(const Manifest& manifest) {
  std::map<std::string, std::vector<PieceRef>> files;
  for (const auto& [name, tensor] : manifest.tensors)
    for (const StoredPiece& piece : tensor.pieces) files[piece.file].push_back({&name, &piece});
  for (auto& [name, pieces] : files)
    std::sort(pieces.begin(), pieces.end(),
              [](const PieceRef& a, const PieceRef& b) { return a.piece->offset < b.piece->offset; });
  return files;
}

void check_manifest(const Manifest& manifest) {
  check_names(manifest.tensors);
  for (const auto& [name, tensor] : manifest.tensors) check_tiling(name, tensor);
  check_files(manifest);
}

std::string manifest_text(const Manifest& manifest) {
  const Json state = Json::parse(manifest.state_json, nullptr, /*allow_exceptions=*/false);
  if (state.is_discarded()) fail(ExitCode::checkpoint, "the state of step {} is not JSON", manifest.step);
  std::string body;
  const auto add = [&](const char* key, const Json& value) {
    // Texts of users may hold bytes that are not UTF-8 (a path in the configuration): these become U+FFFD.
    body += fmt::format("\"{}\": {},\n", key, value.dump(-1, ' ', false, Json::error_handler_t::replace));
  };
  Json files = Json::array();
  for (const StoredFile& file : manifest.files) files.push_back(json_of(file));
  add("format", kFormatName);
  add("format_version", kCheckpointFormatVersion);
  add("step", manifest.step);
  add("saved_at", manifest.saved_at);
  add("world_size", manifest.world_size);
  add("layout", manifest.layout);
  add("versions", manifest.versions);
  add("state", state);
  add("config", manifest.config_yaml);
  add("files", files);
  add("view", json_of(manifest.view));
  body += "\"tensors\": {";
  const char* separator = "\n";
  for (const auto& [name, tensor] : manifest.tensors) {
    body += fmt::format("{}{}: {}", separator, Json(name).dump(), json_of(tensor).dump());
    separator = ",\n";
  }
  body += "\n}}\n";
  return fmt::format("{}{}{}\n{}", kFirstLineBegin, checksum_hex(body.data(), body.size()), kFirstLineEnd, body);
}

Manifest parse_manifest(std::string_view text, const std::string& path) {
  const std::string_view body = checked_body(text, path);
  try {
    const Json json = Json::parse(fmt::format("{{{}", body));
    if (json.at("format").get<std::string>() != kFormatName) fail(ExitCode::checkpoint, "not a {}", kFormatName);
    const int version = json.at("format_version").get<int>();
    if (version != kCheckpointFormatVersion)
      fail(ExitCode::checkpoint, "format version {}, this program reads version {}", version, kCheckpointFormatVersion);
    Manifest manifest = manifest_of(json);
    check_manifest(manifest);
    return manifest;
  } catch (const std::exception& error) {
    fail(ExitCode::checkpoint, "{}: {}", path, error.what());
  }
}

std::string pieces_text(const std::map<std::string, StoredTensor>& tensors, const StoredFile& file) {
  Json json = {{"file", json_of(file)}, {"tensors", Json::object()}};
  for (const auto& [name, tensor] : tensors) json["tensors"][name] = json_of(tensor);
  return json.dump();
}

void add_pieces(Manifest& manifest, std::string_view text) {
  const Json json = Json::parse(text);
  manifest.files.push_back(file_of(json.at("file")));
  for (const auto& [name, value] : json.at("tensors").items()) {
    StoredTensor part = tensor_of(value);
    const auto [place, added] = manifest.tensors.try_emplace(name, part);
    if (added) continue;
    StoredTensor& tensor = place->second;
    if (tensor.shape != part.shape || tensor.dtype != part.dtype)
      fail(ExitCode::checkpoint, "tensor '{}' is {} {} on one rank and {} {} on another", name,
           dtype_name(tensor.dtype), to_text(tensor.shape), dtype_name(part.dtype), to_text(part.shape));
    std::move(part.pieces.begin(), part.pieces.end(), std::back_inserter(tensor.pieces));
  }
}

}  // namespace trainer
