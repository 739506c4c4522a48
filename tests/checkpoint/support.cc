#include "tests/checkpoint/support.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "core/runtime/rng.h"

namespace trainer::checkpoint_test {

namespace fs = std::filesystem;

std::uint64_t Random::bits() {
  const Philox4 block = philox(key_, counter_++);
  return (static_cast<std::uint64_t>(block.v[0]) << 32) | block.v[1];
}

std::int64_t Random::between(std::int64_t first, std::int64_t last) {
  return first + static_cast<std::int64_t>(bits() % static_cast<std::uint64_t>(last - first + 1));
}

Model Model::of_all_dtypes() {
  Model model;
  for (const Dtype dtype :
       {Dtype::f64, Dtype::f32, Dtype::bf16, Dtype::f16, Dtype::i32, Dtype::i64, Dtype::u16, Dtype::u8}) {
    const std::string type(dtype_name(dtype));
    model.tensors.push_back({type + "/model.layers.0.weight", {2, 13, 7}, dtype, {}});
    model.tensors.push_back({type + "/model.norm.weight 50%", {1, 11, 1}, dtype, {}});
  }
  model.clear();
  return model;
}

Model Model::small() {
  Model model;
  model.tensors = {{"model.embed_tokens.weight", {2, 40, 16}, Dtype::f32, {}},
                   {"model.layers.0.mlp.down_proj.weight", {2, 16, 24}, Dtype::bf16, {}},
                   {"model.norm.weight", {1, 16, 1}, Dtype::f32, {}}};
  model.clear();
  return model;
}

void Model::clear() {
  for (LiveTensor& tensor : tensors)
    tensor.data.assign(static_cast<std::size_t>(tensor.shape.numel() * dtype_size(tensor.dtype)), std::byte{0});
}

void Model::fill(std::uint64_t seed) {
  for (LiveTensor& tensor : tensors) {
    const std::uint64_t key = mix_key(mix_key(seed, 0), tensor.name);
    for (std::size_t i = 0; i < tensor.data.size(); ++i)
      tensor.data[i] = static_cast<std::byte>(philox(key, i).v[0] & 0xFFu);
    // All ones: a NaN with a payload in every floating type.
    std::fill_n(tensor.data.begin(), dtype_size(tensor.dtype), std::byte{0xFF});
  }
}

bool Model::same_bits(const Model& other) const {
  return std::equal(tensors.begin(), tensors.end(), other.tensors.begin(), other.tensors.end(),
                    [](const LiveTensor& a, const LiveTensor& b) { return a.data == b.data; });
}

Piece Model::piece(std::size_t index, const Box& box) {
  LiveTensor& tensor = tensors[index];
  const auto element = static_cast<std::size_t>(dtype_size(tensor.dtype));
  // Where element i of the box lies in the whole tensor.
  const auto place = [box, element, cols = tensor.shape.cols](std::int64_t i) {
    const std::int64_t row = box.row0 + i / box.cols, col = box.col0 + i % box.cols;
    return static_cast<std::size_t>(row * cols + col) * element;
  };
  Piece piece{tensor.name, tensor.shape, tensor.dtype, box, {}, {}};
  piece.read = [this, index, place, element](std::int64_t first, std::int64_t count, void* host) {
    ++reads;
    if (on_read) on_read();
    for (std::int64_t i = 0; i < count; ++i)
      std::memcpy(static_cast<std::byte*>(host) + static_cast<std::size_t>(i) * element,
                  tensors[index].data.data() + place(first + i), element);
  };
  piece.write = [this, index, place, element](std::int64_t first, std::int64_t count, const void* host) {
    ++writes;
    for (std::int64_t i = 0; i < count; ++i)
      std::memcpy(tensors[index].data.data() + place(first + i),
                  static_cast<const std::byte*>(host) + static_cast<std::size_t>(i) * element, element);
  };
  return piece;
}

std::vector<Piece> Model::whole() {
  std::vector<Piece> pieces;
  for (std::size_t i = 0; i < tensors.size(); ++i)
    pieces.push_back(piece(i, {0, tensors[i].shape.rows, 0, tensors[i].shape.cols}));
  return pieces;
}

std::vector<Piece> Model::tiled(Random& random) {
  std::vector<Piece> pieces;
  for (std::size_t i = 0; i < tensors.size(); ++i)
    for (const Box& box : random_tiling({0, tensors[i].shape.rows, 0, tensors[i].shape.cols}, random, 6))
      pieces.push_back(piece(i, box));
  for (std::size_t i = pieces.size(); i > 1; --i)
    std::swap(pieces[i - 1], pieces[static_cast<std::size_t>(random.between(0, static_cast<std::int64_t>(i) - 1))]);
  return pieces;
}

std::vector<Box> random_tiling(const Box& whole, Random& random, int cuts) {
  std::vector<Box> boxes{whole};
  for (int cut = 0; cut < cuts; ++cut) {
    Box& box = boxes[static_cast<std::size_t>(random.between(0, static_cast<std::int64_t>(boxes.size()) - 1))];
    Box rest = box;
    if (random.between(0, 1) == 0) {
      if (box.rows < 2) continue;
      box.rows = random.between(1, box.rows - 1);
      rest.row0 += box.rows;
      rest.rows -= box.rows;
    } else {
      if (box.cols < 2) continue;
      box.cols = random.between(1, box.cols - 1);
      rest.col0 += box.cols;
      rest.cols -= box.cols;
    }
    boxes.push_back(rest);
  }
  return boxes;
}

SaveRequest request_for(const std::string& save_dir, std::int64_t step, std::vector<Piece> pieces) {
  SaveRequest request;
  request.save_dir = save_dir;
  request.step = step;
  request.pieces = std::move(pieces);
  request.state_json = R"({"updates":)" + std::to_string(step) + "}";
  request.config_yaml = "train:\n  seed: 1\n";
  request.versions = "trainer 0.1.0";
  request.layout = "dp=1 tp=1";
  request.max_piece_bytes = 512;
  return request;
}

SaveResult save_step(const std::string& save_dir, std::int64_t step, std::int64_t keep_last) {
  SelfCommunicator world("world");
  Model model = Model::small();
  model.fill(static_cast<std::uint64_t>(step));
  SaveRequest request = request_for(save_dir, step, model.whole());
  request.keep_last = keep_last;
  return save_checkpoint(request, world, FaultPlan());
}

std::optional<CheckpointInfo> find_auto(const std::string& save_dir, std::vector<std::string>* warnings) {
  SelfCommunicator world("world");
  return find_checkpoint(save_dir, "auto", world, [&](const std::string& warning) {
    if (warnings != nullptr) warnings->push_back(warning);
  });
}

void expect_content(const CheckpointInfo& info) {
  SelfCommunicator world("world");
  Model expected = Model::small(), loaded = Model::small();
  expected.fill(static_cast<std::uint64_t>(info.manifest.step));
  load_pieces(info, loaded.whole(), world);
  EXPECT_TRUE(loaded.same_bits(expected)) << info.path;
}

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

void flip_bit(const std::string& path, std::int64_t byte, int bit) {
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekg(byte);
  const auto flipped = static_cast<char>(file.get() ^ (1 << bit));
  file.seekp(byte);
  file.put(flipped);
  EXPECT_TRUE(file.good()) << path;
}

}  // namespace trainer::checkpoint_test
