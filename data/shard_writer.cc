#include "data/shard_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <vector>

#include "core/runtime/check.h"
#include "core/runtime/discard.h"
#include "data/hdf5_handle.h"

namespace trainer {
namespace {

[[noreturn]] void fail_write(const std::string& path, const std::string& why) {
  fail(ExitCode::data, "{}: cannot be written: {}", path, why);
}

std::string errno_text() {
  return std::generic_category().message(errno);
}

Hdf5Dataset make_dataset(hid_t file, const std::string& path, const char* name, hid_t type, std::int64_t count) {
  const auto length = static_cast<hsize_t>(count);
  const Hdf5Space space(H5Screate_simple(1, &length, nullptr));
  Hdf5Dataset dataset(H5Dcreate2(file, name, type, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
  if (!dataset) fail_write(path, hdf5_error());
  return dataset;
}

void write_at(hid_t dataset, const std::string& path, hid_t type, std::int64_t first, std::size_t count,
              const void* values) {
  const auto start = static_cast<hsize_t>(first);
  const auto length = static_cast<hsize_t>(count);
  const Hdf5Space memory(H5Screate_simple(1, &length, nullptr));
  const Hdf5Space file(H5Dget_space(dataset));
  if (H5Sselect_hyperslab(file, H5S_SELECT_SET, &start, nullptr, &length, nullptr) < 0 ||
      H5Dwrite(dataset, type, memory, file, H5P_DEFAULT, values) < 0)
    fail_write(path, hdf5_error());
}

void write_attribute(hid_t file, const std::string& path, const char* name, hid_t type, const void* value) {
  const Hdf5Space scalar(H5Screate(H5S_SCALAR));
  const Hdf5Attribute attribute(H5Acreate2(file, name, type, scalar, H5P_DEFAULT, H5P_DEFAULT));
  if (!attribute || H5Awrite(attribute, type, value) < 0) fail_write(path, hdf5_error());
}

void write_attribute(hid_t file, const std::string& path, const char* name, const std::string& text) {
  const Hdf5Type type(H5Tcopy(H5T_C_S1));
  H5Tset_size(type, text.size() + 1);
  write_attribute(file, path, name, type, text.c_str());
}

/// Makes the file, with room for its beginning: HDF5 loses memory over a file that it cannot begin.
void make_room(const std::string& path, bool& made) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NONBLOCK | O_CLOEXEC, 0666);
  if (fd < 0) fail_write(path, errno_text());
  made = true;
  const int error = ::posix_fallocate(fd, 0, 4096);
  ::close(fd);
  if (error != 0) fail_write(path, std::generic_category().message(error));
}

}  // namespace

struct ShardWriter::Impl {
  std::string path;
  std::string temporary;
  ShardPlan plan;
  Hdf5File file;
  Hdf5Dataset tokens, mask, offsets;
  std::int64_t written = 0;
  std::vector<std::uint64_t> documents;
  bool made = false;  // the temporary file, which has not got its name yet

  Impl() = default;
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  /// Here, not in the writer's destructor, which does not run when its constructor throws.
  ~Impl() {
    if (!made) return;
    const Hdf5Quiet quiet;
    // A close that fails leaves an identifier of a file that is gone, on which HDF5 crashes at the end of the process.
    void* handle = nullptr;
    if (file && H5Fget_vfd_handle(file, H5P_DEFAULT, &handle) >= 0) discard_writes(*static_cast<int*>(handle));
    offsets.reset();
    mask.reset();
    tokens.reset();
    file.reset();
    std::error_code ignored;  // nothing more can be done about a file that does not go
    std::filesystem::remove(temporary, ignored);
  }

  bool wide() const { return plan.vocab_size > 65536; }
  template <class T>
  void append(std::span<const std::int32_t> ids, hid_t type) {
    const std::vector<T> stored(ids.begin(), ids.end());
    write_at(tokens, temporary, type, written, stored.size(), stored.data());
  }
};

ShardWriter::ShardWriter(const std::string& path, const ShardPlan& plan) : impl_(std::make_unique<Impl>()) {
  TRAINER_CHECK(plan.tokens >= 1 && plan.vocab_size >= 1, "{} tokens of a vocabulary of {}", plan.tokens,
                plan.vocab_size);
  const Hdf5Quiet quiet;
  Impl& w = *impl_;
  w.path = path;
  w.temporary = path + ".tmp";
  w.plan = plan;
  make_room(w.temporary, w.made);
  const Hdf5Properties access = hdf5_file_access();
  w.file = Hdf5File(H5Fcreate(w.temporary.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, access));
  if (!w.file) fail_write(w.temporary, hdf5_error());
  w.tokens = make_dataset(w.file, w.temporary, "tokens", w.wide() ? H5T_STD_U32LE : H5T_STD_U16LE, plan.tokens);
  if (plan.loss_mask) w.mask = make_dataset(w.file, w.temporary, "loss_mask", H5T_STD_U8LE, plan.tokens);
  write_attribute(w.file, w.temporary, "vocab_size", H5T_NATIVE_INT64, &plan.vocab_size);
  write_attribute(w.file, w.temporary, "source_bytes", H5T_NATIVE_INT64, &plan.source_bytes);
  write_attribute(w.file, w.temporary, "tokenizer", plan.tokenizer);
}

ShardWriter::~ShardWriter() = default;
ShardWriter::ShardWriter(ShardWriter&&) noexcept = default;
ShardWriter& ShardWriter::operator=(ShardWriter&&) noexcept = default;

void ShardWriter::begin_document() {
  impl_->documents.push_back(static_cast<std::uint64_t>(impl_->written));
}

void ShardWriter::append(std::span<const std::int32_t> ids, std::span<const std::uint8_t> mask) {
  Impl& w = *impl_;
  TRAINER_CHECK(std::ssize(ids) <= tokens_left(), "{} tokens, {} left in {}", ids.size(), tokens_left(), w.path);
  TRAINER_CHECK(mask.size() == (w.plan.loss_mask ? ids.size() : 0), "mask of {} for {} tokens", mask.size(),
                ids.size());
  const auto bad = std::find_if(ids.begin(), ids.end(), [&](auto id) { return id < 0 || id >= w.plan.vocab_size; });
  if (bad != ids.end())
    fail(ExitCode::data, "{}: id {} of token {} is outside the vocabulary of {}", w.path, *bad,
         w.written + (bad - ids.begin()), w.plan.vocab_size);
  if (ids.empty()) return;
  const Hdf5Quiet quiet;
  if (w.wide())
    w.append<std::uint32_t>(ids, H5T_NATIVE_UINT32);
  else
    w.append<std::uint16_t>(ids, H5T_NATIVE_UINT16);
  if (w.mask) write_at(w.mask, w.temporary, H5T_NATIVE_UINT8, w.written, mask.size(), mask.data());
  w.written += std::ssize(ids);
}

std::int64_t ShardWriter::tokens_left() const {
  return impl_->plan.tokens - impl_->written;
}

void ShardWriter::finish() {
  Impl& w = *impl_;
  TRAINER_CHECK(tokens_left() == 0, "{} tokens of {} were not appended", tokens_left(), w.path);
  const Hdf5Quiet quiet;
  w.offsets = make_dataset(w.file, w.temporary, "doc_offsets", H5T_STD_U64LE, std::ssize(w.documents));
  if (!w.documents.empty())
    write_at(w.offsets, w.temporary, H5T_NATIVE_UINT64, 0, w.documents.size(), w.documents.data());
  // The closes then have nothing left to write.
  if (H5Fflush(w.file, H5F_SCOPE_GLOBAL) < 0 || !w.offsets.reset() || !w.mask.reset() || !w.tokens.reset() ||
      !w.file.reset())
    fail_write(w.temporary, hdf5_error());
  const int fd = ::open(w.temporary.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) fail_write(w.temporary, errno_text());
  const bool synced = ::fsync(fd) == 0;
  const std::string why = errno_text();
  ::close(fd);
  if (!synced) fail_write(w.temporary, why);
}

void ShardWriter::publish() {
  TRAINER_CHECK(!impl_->file, "{} is published before it is finished", impl_->path);
  if (std::rename(impl_->temporary.c_str(), impl_->path.c_str()) != 0) fail_write(impl_->path, errno_text());
  impl_->made = false;
}

const std::string& ShardWriter::path() const {
  return impl_->path;
}

}  // namespace trainer
