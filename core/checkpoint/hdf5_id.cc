#include "core/checkpoint/hdf5_id.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <bit>

#include "core/runtime/discard.h"

namespace trainer::checkpoint {
namespace {

static_assert(std::endian::native == std::endian::little, "files are little-endian and nothing is converted");

herr_t append_description(unsigned, const H5E_error2_t* entry, void* text) noexcept {
  auto& joined = *static_cast<std::string*>(text);
  if (entry->desc == nullptr || *entry->desc == '\0') return 0;
  if (!joined.empty()) joined += "; ";
  joined += entry->desc;
  return 0;
}

bool says_locking(const std::string& stack) {
  for (const char* error : {"errno = 11,", "errno = 37,", "errno = 524,"})  // EAGAIN, ENOLCK, ENOTSUPP of the kernel
    if (stack.find(error) != std::string::npos) return stack.find("lock") != std::string::npos;
  return false;
}

Hdf5Id small_float(std::size_t exponent_bits, std::size_t mantissa_bits, std::size_t bias) {
  Hdf5Id type(H5Tcopy(H5T_IEEE_F32LE), H5Tclose, "a float type");
  const bool made = H5Tset_fields(type.get(), 15, mantissa_bits, exponent_bits, 0, mantissa_bits) >= 0 &&
                    H5Tset_precision(type.get(), 16) >= 0 && H5Tset_size(type.get(), 2) >= 0 &&
                    H5Tset_ebias(type.get(), bias) >= 0;
  if (!made) fail_hdf5("a float type");
  return type;
}

hid_t standard_type(Dtype dtype) {
  switch (dtype) {
    case Dtype::f64:
      return H5T_IEEE_F64LE;
    case Dtype::f32:
      return H5T_IEEE_F32LE;
    case Dtype::i32:
      return H5T_STD_I32LE;
    case Dtype::i64:
      return H5T_STD_I64LE;
    case Dtype::u16:
      return H5T_STD_U16LE;
    case Dtype::u8:
      return H5T_STD_U8LE;
    default:
      fail(ExitCode::other, "no HDF5 type for {}", dtype_name(dtype));
  }
}

Hdf5Id create_hdf5(const std::string& path) {
  const Hdf5Id access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose, path);
  check_hdf5(H5Pset_libver_bounds(access.get(), H5F_LIBVER_V110, H5F_LIBVER_V110), path);
  check_hdf5(H5Pset_file_locking(access.get(), false, true), path);
  check_hdf5(H5Pset_fclose_degree(access.get(), H5F_CLOSE_STRONG), path);
  // Without a sieve buffer every write is on its way, or has failed, when H5Dwrite returns.
  check_hdf5(H5Pset_sieve_buf_size(access.get(), 0), path);
  return Hdf5Id(H5Fcreate(path.c_str(), H5F_ACC_EXCL, H5P_DEFAULT, access.get()), H5Fclose, path);
}

}  // namespace

void fail_hdf5(const std::string& what) {
  std::string stack;
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, append_description, &stack);
  const char* advice =
      says_locking(stack) ? " (this file system has no file locks: set HDF5_USE_FILE_LOCKING=FALSE)" : "";
  throw IoError(fmt::format("cannot write {}{}: {}", what, advice, stack));
}

QuietHdf5::QuietHdf5() {
  H5Eget_auto2(H5E_DEFAULT, &function_, &data_);
  H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
}

QuietHdf5::~QuietHdf5() {
  H5Eset_auto2(H5E_DEFAULT, function_, data_);
}

NewHdf5File::NewHdf5File(const std::string& path)
    : path_(path), file_(create_hdf5(path)), descriptor_(path, O_RDONLY) {}

NewHdf5File::~NewHdf5File() {
  if (file_.get() < 0) return;
  // A close that fails leaves an identifier of a file that is gone, on which HDF5 crashes at the end of the process.
  void* handle = nullptr;
  if (H5Fget_vfd_handle(file_.get(), H5P_DEFAULT, &handle) >= 0) discard_writes(*static_cast<int*>(handle));
}

const FileDescriptor& NewHdf5File::finish() {
  check_hdf5(H5Fflush(file_.get(), H5F_SCOPE_GLOBAL), path_);  // may fail; the close then has nothing left to write
  check_hdf5(file_.reset(), path_);
  descriptor_.sync();
  return descriptor_;
}

Hdf5Id stored_type(Dtype dtype) {
  if (dtype == Dtype::bf16) return small_float(8, 7, 127);
  if (dtype == Dtype::f16) return small_float(5, 10, 15);
  return Hdf5Id(H5Tcopy(standard_type(dtype)), H5Tclose, "a type");
}

Hdf5Id make_groups() {
  Hdf5Id links(H5Pcreate(H5P_LINK_CREATE), H5Pclose, "a property list");
  check_hdf5(H5Pset_create_intermediate_group(links.get(), 1), "a property list");
  return links;
}

}  // namespace trainer::checkpoint
