// model.h5 and the files of the ranks, as other HDF5 programs see them.
#include <array>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "core/checkpoint/hdf5_id.h"
#include "tests/checkpoint/support.h"
#include "tests/support/files.h"

namespace trainer::checkpoint_test {
namespace {

namespace fs = std::filesystem;
using checkpoint::Hdf5Id;

/// A whole dataset in its stored type.
std::vector<std::byte> read_dataset(const std::string& path, const std::string& name, std::size_t bytes) {
  const Hdf5Id file(H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT), H5Fclose, path);
  const Hdf5Id dataset(H5Dopen2(file.get(), name.c_str(), H5P_DEFAULT), H5Dclose, name);
  const Hdf5Id type(H5Dget_type(dataset.get()), H5Tclose, name);
  std::vector<std::byte> data(bytes);
  EXPECT_GE(H5Dread(dataset.get(), type.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, data.data()), 0);
  return data;
}

struct Saved {
  TemporaryFolder folder;
  Model model;
  SaveResult result;
};

void save_tiled(Saved& saved, Model model) {
  SelfCommunicator world("world");
  Random random(9);
  saved.model = std::move(model);
  saved.model.fill(9);
  saved.result = save_checkpoint(request_for(saved.folder.path(), 9, saved.model.tiled(random)), world, FaultPlan());
}

TEST(View, ShowsEveryTensorWholeAlsoAfterTheFolderMoved) {
  Saved saved;
  save_tiled(saved, Model::of_all_dtypes());
  const std::string moved = saved.folder / "elsewhere";
  fs::rename(saved.result.path, moved);
  for (const LiveTensor& tensor : saved.model.tensors)
    EXPECT_EQ(read_dataset(moved + "/model.h5", tensor.name, tensor.data.size()), tensor.data) << tensor.name;
}

TEST(View, ShowsNanWhereAFileIsMissing) {
  Saved saved;
  save_tiled(saved, Model::small());
  fs::remove(saved.result.path + "/rank-0000.h5");
  const auto data = read_dataset(saved.result.path + "/model.h5", "model.norm.weight", 16 * sizeof(float));
  std::array<float, 16> values{};
  std::memcpy(values.data(), data.data(), data.size());
  for (const float value : values) EXPECT_TRUE(std::isnan(value));
}

TEST(View, OffsetsOfTheManifestAreWhatHdf5Says) {
  Saved saved;
  save_tiled(saved, Model::of_all_dtypes());
  const CheckpointInfo info = read_checkpoint_info(saved.result.path);
  for (const auto& [name, tensor] : info.manifest.tensors)
    for (const StoredPiece& piece : tensor.pieces) {
      const Hdf5Id file(H5Fopen((info.path + "/" + piece.file).c_str(), H5F_ACC_RDONLY, H5P_DEFAULT), H5Fclose, name);
      const Hdf5Id dataset(H5Dopen2(file.get(), piece.dataset.c_str(), H5P_DEFAULT), H5Dclose, name);
      EXPECT_EQ(static_cast<std::int64_t>(H5Dget_offset(dataset.get())), piece.offset);
      EXPECT_EQ(static_cast<std::int64_t>(H5Dget_storage_size(dataset.get())), piece.bytes);
      const Hdf5Id attribute(H5Aopen(dataset.get(), "box", H5P_DEFAULT), H5Aclose, name);
      std::array<std::int64_t, 4> box{};
      EXPECT_GE(H5Aread(attribute.get(), H5T_NATIVE_INT64, box.data()), 0);
      EXPECT_EQ((Box{box[0], box[1], box[2], box[3]}), piece.box);
    }
}

TEST(View, ReadByH5py) {
  std::string python = "python3";
  const auto has_h5py = [&] { return std::system((python + " -c 'import h5py' >/dev/null 2>&1").c_str()) == 0; };
  if (!has_h5py()) python = "/usr/bin/python3";
  if (!has_h5py()) GTEST_SKIP() << "python3-h5py is not installed";
  SelfCommunicator world("world");
  const TemporaryFolder folder;
  Model model;
  for (const Dtype dtype : {Dtype::f32, Dtype::bf16, Dtype::f16})
    model.tensors.push_back({std::string(dtype_name(dtype)), {2, 6, 4}, dtype, {}});
  model.clear();
  for (LiveTensor& tensor : model.tensors)  // element i is i - 12.5, exact in each type
    for (int i = 0; i < 24; ++i) {
      const float value = static_cast<float>(i) - 12.5f;
      const std::uint16_t half = tensor.dtype == Dtype::bf16 ? bf16_bits_from_float(value) : f16_bits_from_float(value);
      const void* bits = tensor.dtype == Dtype::f32 ? static_cast<const void*>(&value) : &half;
      const auto size = static_cast<std::size_t>(dtype_size(tensor.dtype));
      std::memcpy(&tensor.data[static_cast<std::size_t>(i) * size], bits, size);
    }
  Random random(4);
  const std::string path = save_checkpoint(request_for(folder.path(), 1, model.tiled(random)), world, FaultPlan()).path;
  write_file(folder / "read.py", R"(
import h5py, numpy, sys
expected = numpy.arange(24, dtype=numpy.float32).reshape(6, 4) - 12.5
with h5py.File(sys.argv[1] + "/model.h5", "r") as view:
    for name in ("float32", "bfloat16", "float16"):
        assert view[name].shape == (6, 4) and numpy.array_equal(view[name][:], expected), name
with h5py.File(sys.argv[1] + "/rank-0000.h5", "r") as rank:
    for name in ("float32", "bfloat16", "float16"):
        for piece in rank[name].values():
            row, rows, col, cols = piece.attrs["box"]
            assert numpy.array_equal(piece[:], expected[row:row + rows, col:col + cols]), piece.name
            assert len(piece.attrs["xxh3_128"]) == 32
)");
  EXPECT_EQ(std::system((python + " " + (folder / "read.py") + " " + path).c_str()), 0);
}

}  // namespace
}  // namespace trainer::checkpoint_test
