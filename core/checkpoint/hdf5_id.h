// The HDF5 C API with owners and exceptions.
#pragma once
#include <hdf5.h>

#include <string>
#include <utility>

#include "core/checkpoint/file_io.h"
#include "core/runtime/dtype.h"

namespace trainer::checkpoint {

/// Throws IoError "cannot write <what>: <the stack of HDF5, innermost first>", with advice about file locking where
/// that is the cause. Call it right after the failed call: the next one clears the stack.
[[noreturn]] void fail_hdf5(const std::string& what);

/// Owns an identifier.
class Hdf5Id {
 public:
  using Close = herr_t (*)(hid_t);
  Hdf5Id() = default;
  /// `id` is what an HDF5 function returned; fails (fail_hdf5) when it is negative.
  Hdf5Id(hid_t id, Close close, const std::string& what) : id_(id), close_(close) {
    if (id < 0) fail_hdf5(what);
  }
  ~Hdf5Id() { reset(); }
  Hdf5Id(Hdf5Id&& other) noexcept : id_(std::exchange(other.id_, -1)), close_(other.close_) {}
  Hdf5Id& operator=(Hdf5Id&& other) noexcept {
    reset();
    id_ = std::exchange(other.id_, -1);
    close_ = other.close_;
    return *this;
  }

  hid_t get() const { return id_; }
  /// Closes now; negative when that fails.
  herr_t reset() noexcept { return id_ < 0 ? 0 : close_(std::exchange(id_, -1)); }

 private:
  hid_t id_ = -1;
  Close close_ = nullptr;
};

inline void check_hdf5(herr_t result, const std::string& what) {
  if (result < 0) fail_hdf5(what);
}

/// While it lives, HDF5 prints no error stacks on this thread.
class QuietHdf5 {
 public:
  QuietHdf5();
  ~QuietHdf5();
  QuietHdf5(const QuietHdf5&) = delete;
  QuietHdf5& operator=(const QuietHdf5&) = delete;

 private:
  H5E_auto2_t function_ = nullptr;
  void* data_ = nullptr;
};

/// A new file in the format of HDF5 1.10, without file locks: the name is ours alone until the folder is published.
class NewHdf5File {
 public:
  explicit NewHdf5File(const std::string& path);
  /// Before finish(): gives the file up, whatever state the disk is in.
  ~NewHdf5File();
  NewHdf5File(const NewHdf5File&) = delete;
  NewHdf5File& operator=(const NewHdf5File&) = delete;

  hid_t get() const { return file_.get(); }
  /// Closes the HDF5 file and waits until it is on the disk; returns the plain file. Throws IoError.
  const FileDescriptor& finish();

 private:
  std::string path_;
  Hdf5Id file_;
  FileDescriptor descriptor_;  // opened before anything is written, so that its fsync reports every write error
};

/// The stored type: little-endian; bfloat16 and float16 as IEEE types of our own making that other readers understand.
/// Memory has the same bits, so that nothing is ever converted.
Hdf5Id stored_type(Dtype dtype);

/// Makes the groups of a dataset's path.
Hdf5Id make_groups();

}  // namespace trainer::checkpoint
