#include "core/checkpoint/piece_file.h"

#include <algorithm>
#include <array>
#include <limits>

#include "core/checkpoint/checksum.h"

namespace trainer::checkpoint {
namespace {

void add_box(hid_t dataset, const Box& box, const std::string& what) {
  const hsize_t count = 4;
  const std::array<std::int64_t, 4> values{box.row0, box.rows, box.col0, box.cols};
  const Hdf5Id space(H5Screate_simple(1, &count, nullptr), H5Sclose, what);
  const Hdf5Id attribute(H5Acreate2(dataset, "box", H5T_STD_I64LE, space.get(), H5P_DEFAULT, H5P_DEFAULT), H5Aclose,
                         what);
  check_hdf5(H5Awrite(attribute.get(), H5T_STD_I64LE, values.data()), what);
}

void add_checksum(hid_t dataset, const std::string& checksum, const std::string& what) {
  const Hdf5Id type(H5Tcopy(H5T_C_S1), H5Tclose, what);
  check_hdf5(H5Tset_size(type.get(), checksum.size()), what);
  check_hdf5(H5Tset_strpad(type.get(), H5T_STR_NULLPAD), what);
  const Hdf5Id space(H5Screate(H5S_SCALAR), H5Sclose, what);
  const Hdf5Id attribute(H5Acreate2(dataset, "xxh3_128", type.get(), space.get(), H5P_DEFAULT, H5P_DEFAULT), H5Aclose,
                         what);
  check_hdf5(H5Awrite(attribute.get(), type.get(), checksum.c_str()), what);
}

Hdf5Id space_of(int dims, std::int64_t rows, std::int64_t cols, const std::string& what) {
  const std::array<hsize_t, 2> sizes{static_cast<hsize_t>(rows), static_cast<hsize_t>(cols)};
  return Hdf5Id(H5Screate_simple(dims, sizes.data(), nullptr), H5Sclose, what);
}

/// HDF5 takes '%' in the names of a mapping's sources for the start of a pattern.
std::string escaped(const std::string& name) {
  std::string text;
  for (const char c : name) text += c == '%' ? std::string("%%") : std::string(1, c);
  return text;
}

void set_missing_value(hid_t creation, Dtype dtype, const std::string& what) {
  const auto set = [&](const auto& value) {
    check_hdf5(H5Pset_fill_value(creation, stored_type(dtype).get(), &value), what);
  };
  switch (dtype) {
    case Dtype::f64:
      return set(std::numeric_limits<double>::quiet_NaN());
    case Dtype::f32:
      return set(std::numeric_limits<float>::quiet_NaN());
    case Dtype::bf16:
      return set(Bfloat16(std::numeric_limits<float>::quiet_NaN()));
    case Dtype::f16:
      return set(Float16(std::numeric_limits<float>::quiet_NaN()));
    case Dtype::i32:
      return set(std::numeric_limits<std::int32_t>::min());
    case Dtype::i64:
      return set(std::numeric_limits<std::int64_t>::min());
    case Dtype::u16:
      return set(std::numeric_limits<std::uint16_t>::max());
    case Dtype::u8:
      return set(std::numeric_limits<std::uint8_t>::max());
  }
}

void add_virtual_tensor(hid_t file, const std::string& name, const StoredTensor& tensor, const std::string& what) {
  const int dims = tensor.shape.dims;
  const Hdf5Id whole = space_of(dims, tensor.shape.rows, tensor.shape.cols, what);
  const Hdf5Id creation(H5Pcreate(H5P_DATASET_CREATE), H5Pclose, what);
  set_missing_value(creation.get(), tensor.dtype, what);
  for (const StoredPiece& piece : tensor.pieces) {
    const Box& box = piece.box;
    const std::array<hsize_t, 2> start{static_cast<hsize_t>(box.row0), static_cast<hsize_t>(box.col0)};
    const std::array<hsize_t, 2> count{static_cast<hsize_t>(box.rows), static_cast<hsize_t>(box.cols)};
    check_hdf5(H5Sselect_hyperslab(whole.get(), H5S_SELECT_SET, start.data(), nullptr, count.data(), nullptr), what);
    const Hdf5Id source = space_of(dims, box.rows, box.cols, what);
    check_hdf5(
        H5Pset_virtual(creation.get(), whole.get(), piece.file.c_str(), escaped(piece.dataset).c_str(), source.get()),
        what);
  }
  const Hdf5Id space = space_of(dims, tensor.shape.rows, tensor.shape.cols, what);
  const Hdf5Id dataset(H5Dcreate2(file, ("/" + name).c_str(), stored_type(tensor.dtype).get(), space.get(),
                                  make_groups().get(), creation.get(), H5P_DEFAULT),
                       H5Dclose, what);
}

}  // namespace

PieceFile::PieceFile(const std::string& folder, const std::string& name)
    : path_(folder + "/" + name),
      name_(name),
      file_(path_),
      links_(make_groups()),
      layout_(H5Pcreate(H5P_DATASET_CREATE), H5Pclose, path_) {
  check_hdf5(H5Pset_layout(layout_.get(), H5D_CONTIGUOUS), path_);
  check_hdf5(H5Pset_fill_time(layout_.get(), H5D_FILL_TIME_NEVER), path_);
  check_hdf5(H5Pset_obj_track_times(layout_.get(), false), path_);
}

void PieceFile::append(const Piece& piece, const Box& box, const void* data) {
  StoredTensor& tensor = tensors_.try_emplace(piece.tensor, StoredTensor{piece.dtype, piece.global, {}}).first->second;
  StoredPiece stored;
  stored.file = name_;
  stored.dataset = fmt::format("/{}/{:04}", piece.tensor, tensor.pieces.size());
  stored.bytes = box.numel() * dtype_size(piece.dtype);
  stored.box = box;
  stored.checksum = checksum_hex(data, static_cast<std::size_t>(stored.bytes));

  const Hdf5Id type = stored_type(piece.dtype);
  const Hdf5Id space = space_of(piece.global.dims, box.rows, box.cols, path_);
  Hdf5Id dataset(H5Dcreate2(file_.get(), stored.dataset.c_str(), type.get(), space.get(), links_.get(), layout_.get(),
                            H5P_DEFAULT),
                 H5Dclose, path_);
  add_box(dataset.get(), box, path_);
  add_checksum(dataset.get(), stored.checksum, path_);
  check_hdf5(H5Dwrite(dataset.get(), type.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, data), path_);
  const haddr_t address = H5Dget_offset(dataset.get());
  if (address == HADDR_UNDEF) fail_hdf5(path_);
  check_hdf5(dataset.reset(), path_);
  stored.offset = static_cast<std::int64_t>(address);
  extents_.push_back({stored.offset, stored.bytes});
  tensor.pieces.push_back(std::move(stored));
}

StoredFile PieceFile::finish() {
  const FileDescriptor& file = file_.finish();
  std::sort(extents_.begin(), extents_.end(), [](const Extent& a, const Extent& b) { return a.offset < b.offset; });
  return {name_, file.size(), checksum_outside(file, extents_)};
}

StoredFile write_view(const std::string& folder, const Manifest& manifest) {
  const QuietHdf5 quiet;
  const std::string path = folder + "/" + kViewName;
  NewHdf5File file(path);
  for (const auto& [name, tensor] : manifest.tensors) add_virtual_tensor(file.get(), name, tensor, path);
  const FileDescriptor& descriptor = file.finish();
  return {kViewName, descriptor.size(), checksum_outside(descriptor, {})};
}

}  // namespace trainer::checkpoint
