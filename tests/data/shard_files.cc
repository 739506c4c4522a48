#include "tests/data/shard_files.h"

#include <hdf5.h>

#include <stdexcept>

namespace trainer::testing {

namespace {

hid_t stored_type(Hdf5Shard::Type type) {
  switch (type) {
    case Hdf5Shard::Type::u8:
      return H5T_STD_U8LE;
    case Hdf5Shard::Type::i8:
      return H5T_STD_I8LE;
    case Hdf5Shard::Type::u16:
      return H5T_STD_U16LE;
    case Hdf5Shard::Type::u16_big_endian:
      return H5T_STD_U16BE;
    case Hdf5Shard::Type::u32:
      return H5T_STD_U32LE;
    case Hdf5Shard::Type::i32:
      return H5T_STD_I32LE;
    case Hdf5Shard::Type::i64:
      return H5T_STD_I64LE;
    case Hdf5Shard::Type::f32:
      return H5T_IEEE_F32LE;
  }
  return H5I_INVALID_HID;
}

void write_dataset(hid_t file, const std::string& name, hid_t type, const std::vector<hsize_t>& shape, bool chunked,
                   hid_t memory_type, const void* values) {
  const hid_t space = H5Screate_simple(static_cast<int>(shape.size()), shape.data(), nullptr);
  const hid_t creation = H5Pcreate(H5P_DATASET_CREATE);
  if (chunked) H5Pset_chunk(creation, static_cast<int>(shape.size()), shape.data());
  const hid_t dataset = H5Dcreate2(file, name.c_str(), type, space, H5P_DEFAULT, creation, H5P_DEFAULT);
  if (values != nullptr && H5Dwrite(dataset, memory_type, H5S_ALL, H5S_ALL, H5P_DEFAULT, values) < 0)
    throw std::runtime_error("HDF5 write failed");
  H5Dclose(dataset);
  H5Pclose(creation);
  H5Sclose(space);
}

}  // namespace

void write_hdf5(const std::string& path, const Hdf5Shard& shard) {
  const hid_t file = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
  std::vector<hsize_t> shape{shard.ids.size()};
  if (shard.two_dimensional) shape = {2, shard.ids.size() / 2};
  write_dataset(file, shard.tokens_name, stored_type(shard.type), shape, shard.chunked, H5T_NATIVE_INT64,
                shard.never_written || shard.ids.empty() ? nullptr : shard.ids.data());
  if (!shard.mask.empty())
    write_dataset(file, "loss_mask", H5T_STD_U8LE, {shard.mask.size()}, false, H5T_NATIVE_UINT8, shard.mask.data());
  if (shard.documents)
    write_dataset(file, "doc_offsets", H5T_STD_I64LE, {shard.documents->size()}, false, H5T_NATIVE_INT64,
                  shard.documents->empty() ? nullptr : shard.documents->data());
  if (shard.vocab_size) {
    const hid_t space = H5Screate(H5S_SCALAR);
    const hid_t attribute = H5Acreate2(file, "vocab_size", H5T_STD_I32LE, space, H5P_DEFAULT, H5P_DEFAULT);
    H5Awrite(attribute, H5T_NATIVE_INT64, &*shard.vocab_size);
    H5Aclose(attribute);
    H5Sclose(space);
  }
  H5Fclose(file);
}

std::string llmc_header(std::int32_t magic, std::int32_t count) {
  std::string header(1024, '\0');
  const std::int32_t words[] = {magic, 1, count};
  header.replace(0, sizeof words, reinterpret_cast<const char*>(words), sizeof words);
  return header;
}

}  // namespace trainer::testing
