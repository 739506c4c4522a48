#include "data/hdf5_shard.h"

#include "core/runtime/check.h"
#include "data/hdf5_handle.h"

namespace trainer {
namespace {

/// A one-dimensional contiguous dataset, as it lies in the file.
struct Extent {
  std::int64_t offset = 0;  // bytes from the start of the file
  std::int64_t count = 0;   // elements
};

Hdf5File open_file(const std::string& path, std::int64_t size) {
  const Hdf5Properties access = hdf5_file_access();
  Hdf5File file(H5Fopen(path.c_str(), H5F_ACC_RDONLY, access));
  if (!file)
    fail(ExitCode::data,
         "{}: not a readable HDF5 file ({} bytes): {}. If it was copied, compare its size with the original's; if the "
         "message is about locking, set HDF5_USE_FILE_LOCKING=FALSE",
         path, size, hdf5_error());
  return file;
}

IdType integer_type(hid_t dataset, const std::string& path, const char* name) {
  const Hdf5Type type(H5Dget_type(dataset));
  const std::size_t bytes = H5Tget_size(type);
  const bool integer = H5Tget_class(type) == H5T_INTEGER;
  const bool little = bytes == 1 || H5Tget_order(type) == H5T_ORDER_LE;
  const bool is_signed = integer && H5Tget_sign(type) == H5T_SGN_2;
  if (integer && little && !is_signed && bytes == 1) return IdType::u8;
  if (integer && little && !is_signed && bytes == 2) return IdType::u16;
  if (integer && little && bytes == 4) return is_signed ? IdType::i32 : IdType::u32;
  fail(ExitCode::data,
       "{}: dataset '{}' has elements of {} bytes ({}{}{}); little-endian uint8, uint16, uint32 and int32 can be read",
       path, name, bytes, integer ? "" : "not an integer, ", little ? "little-endian" : "big-endian",
       is_signed ? ", signed" : "");
}

Hdf5Dataset open_dataset(hid_t file, const std::string& path, const char* name) {
  Hdf5Dataset dataset(H5Dopen2(file, name, H5P_DEFAULT));
  if (!dataset) fail(ExitCode::data, "{}: dataset '{}' cannot be opened: {}", path, name, hdf5_error());
  return dataset;
}

/// Where the elements of a dataset lie, each of `width` bytes.
Extent locate(hid_t dataset, const std::string& path, const char* name, std::int64_t width, std::int64_t file_size) {
  Extent extent;
  const Hdf5Space space(H5Dget_space(dataset));
  const int dims = H5Sget_simple_extent_ndims(space);
  hsize_t length = 0;
  if (dims != 1 || H5Sget_simple_extent_dims(space, &length, nullptr) != 1)
    fail(ExitCode::data, "{}: dataset '{}' has {} dimensions; it must have 1", path, name, dims);
  if (length == 0) fail(ExitCode::data, "{}: dataset '{}' is empty (0 elements)", path, name);
  extent.count = static_cast<std::int64_t>(length);

  const Hdf5Properties creation(H5Dget_create_plist(dataset));
  if (H5Pget_layout(creation) != H5D_CONTIGUOUS || H5Pget_external_count(creation) != 0)
    fail(
        ExitCode::data,
        "{}: dataset '{}' is not stored contiguously in this file, so that it cannot be memory-mapped: rewrite it with "
        "h5repack -l CONTI OLD NEW",
        path, name);
  const haddr_t offset = H5Dget_offset(dataset);
  if (offset == HADDR_UNDEF) fail(ExitCode::data, "{}: dataset '{}' was never written", path, name);
  const std::int64_t bytes = extent.count * width;
  if (offset > static_cast<haddr_t>(file_size) || bytes > file_size - static_cast<std::int64_t>(offset))
    fail(ExitCode::data, "{}: truncated: dataset '{}' takes bytes {} to {}, the file has {}", path, name, offset,
         offset + static_cast<haddr_t>(bytes), file_size);
  extent.offset = static_cast<std::int64_t>(offset);
  return extent;
}

/// The integer attribute `vocab_size` of the file, or nothing when it has none.
std::optional<std::int64_t> read_vocab_size(hid_t file, const std::string& path) {
  constexpr const char* name = "vocab_size";
  if (H5Aexists(file, name) <= 0) return std::nullopt;
  const Hdf5Attribute attribute(H5Aopen(file, name, H5P_DEFAULT));
  const Hdf5Type type(H5Aget_type(attribute));
  const Hdf5Space space(H5Aget_space(attribute));
  std::int64_t value = 0;
  if (H5Tget_class(type) != H5T_INTEGER || H5Sget_simple_extent_npoints(space) != 1 ||
      H5Aread(attribute, H5T_NATIVE_INT64, &value) < 0 || value < 1)
    fail(ExitCode::data, "{}: attribute '{}' must be one positive integer", path, name);
  return value;
}

/// Finds where documents begin. An empty dataset says that none begins in this shard.
void find_documents(hid_t file, TokenShard& shard) {
  constexpr const char* name = "doc_offsets";
  constexpr std::int64_t width = 8;
  if (H5Lexists(file, name, H5P_DEFAULT) <= 0)
    fail(ExitCode::data,
         "{}: has no dataset '{}' (where documents begin), which data.intra_document_attention needs: prepare the text "
         "again with 'trainer data prepare'",
         shard.path, name);
  const Hdf5Dataset dataset = open_dataset(file, shard.path, name);
  const Hdf5Type type(H5Dget_type(dataset));
  if (H5Tget_class(type) != H5T_INTEGER || H5Tget_size(type) != width || H5Tget_order(type) != H5T_ORDER_LE)
    fail(ExitCode::data, "{}: dataset '{}' must hold little-endian integers of 64 bits", shard.path, name);
  if (H5Sget_simple_extent_npoints(Hdf5Space(H5Dget_space(dataset))) == 0) return;
  const Extent offsets = locate(dataset, shard.path, name, width, shard.file.size());
  shard.documents = offsets.count;
  shard.offsets = shard.file.data() + offsets.offset;
  std::int64_t before = -1;
  for (std::int64_t i = 0; i < shard.documents; ++i) {
    const std::int64_t offset = document_offset(shard, i);
    if (offset <= before || offset >= shard.count)
      fail(ExitCode::data,
           "{}: dataset '{}' says that document {} begins at token {}{}, in a shard of {} tokens: starts must increase "
           "and lie in the shard. Prepare the text again",
           shard.path, name, i, offset, i > 0 ? fmt::format(", behind one at {}", before) : std::string(), shard.count);
    before = offset;
  }
}

}  // namespace

TokenShard open_hdf5_shard(const std::string& path, bool documents) {
  const Hdf5Quiet quiet;
  TokenShard shard;
  shard.path = path;
  shard.file = MappedFile(path);
  const Hdf5File file = open_file(path, shard.file.size());
  if (H5Lexists(file, "tokens", H5P_DEFAULT) <= 0)
    fail(ExitCode::data, "{}: has no dataset 'tokens' (the token ids, one dimension)", path);
  const Hdf5Dataset dataset = open_dataset(file, path, "tokens");
  shard.type = integer_type(dataset, path, "tokens");
  const Extent tokens = locate(dataset, path, "tokens", id_bytes(shard.type), shard.file.size());
  shard.count = tokens.count;
  shard.tokens = shard.file.data() + tokens.offset;
  shard.vocab_size = read_vocab_size(file, path);
  if (H5Lexists(file, "loss_mask", H5P_DEFAULT) > 0) {
    const Hdf5Dataset loss_mask = open_dataset(file, path, "loss_mask");
    const IdType type = integer_type(loss_mask, path, "loss_mask");
    const Extent mask = locate(loss_mask, path, "loss_mask", id_bytes(type), shard.file.size());
    if (type != IdType::u8 || mask.count != tokens.count)
      fail(ExitCode::data,
           "{}: dataset 'loss_mask' has {} elements of {}; it must have {} of uint8, one for each token", path,
           mask.count, id_type_name(type), tokens.count);
    shard.mask = shard.file.data() + mask.offset;
  }
  if (documents) find_documents(file, shard);
  return shard;
}

}  // namespace trainer
