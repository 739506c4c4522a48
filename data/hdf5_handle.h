// HDF5's C interface with owners for its ids and texts for its errors. Private to this box.
#pragma once
#include <hdf5.h>

#include <string>
#include <utility>

namespace trainer {

/// Owns an HDF5 id, closed with `Close`. False when the call that made it failed.
template <herr_t (*Close)(hid_t)>
class Hdf5Handle {
 public:
  Hdf5Handle() = default;
  explicit Hdf5Handle(hid_t id) : id_(id) {}
  ~Hdf5Handle() { reset(); }
  Hdf5Handle(Hdf5Handle&& other) noexcept : id_(std::exchange(other.id_, H5I_INVALID_HID)) {}
  Hdf5Handle& operator=(Hdf5Handle&& other) noexcept {
    std::swap(id_, other.id_);
    return *this;
  }

  explicit operator bool() const { return id_ >= 0; }
  operator hid_t() const { return id_; }
  /// Closes now; false when that failed, which for a file may mean that data did not reach it.
  bool reset() { return id_ < 0 || Close(std::exchange(id_, H5I_INVALID_HID)) >= 0; }

 private:
  hid_t id_ = H5I_INVALID_HID;
};

using Hdf5File = Hdf5Handle<H5Fclose>;
using Hdf5Dataset = Hdf5Handle<H5Dclose>;
using Hdf5Space = Hdf5Handle<H5Sclose>;
using Hdf5Type = Hdf5Handle<H5Tclose>;
using Hdf5Attribute = Hdf5Handle<H5Aclose>;
using Hdf5Properties = Hdf5Handle<H5Pclose>;

/// Keeps HDF5 from printing its error stack while this lives: our exceptions carry the text.
class Hdf5Quiet {
 public:
  Hdf5Quiet() {
    H5Eget_auto2(H5E_DEFAULT, &print_, &data_);
    H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
  }
  ~Hdf5Quiet() { H5Eset_auto2(H5E_DEFAULT, print_, data_); }
  Hdf5Quiet(const Hdf5Quiet&) = delete;
  Hdf5Quiet& operator=(const Hdf5Quiet&) = delete;

 private:
  H5E_auto2_t print_ = nullptr;
  void* data_ = nullptr;
};

/// How files are opened: without locks, which network file systems often lack. Shards are written under another name
/// and never changed, so that there is nothing to guard. Give it a name: closing it forgets what hdf5_error() says.
inline Hdf5Properties hdf5_file_access() {
  Hdf5Properties access(H5Pcreate(H5P_FILE_ACCESS));
  H5Pset_file_locking(access, false, true);
  return access;
}

/// What went wrong in the last failed call, in HDF5's words: the innermost entry of its error stack.
inline std::string hdf5_error() {
  std::string text;
  const auto take_innermost = [](unsigned depth, const H5E_error2_t* entry, void* out) -> herr_t {
    if (depth == 0 && entry->desc != nullptr) *static_cast<std::string*>(out) = entry->desc;
    return 0;
  };
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, take_innermost, &text);
  return text.empty() ? "no reason given" : text;
}

}  // namespace trainer
