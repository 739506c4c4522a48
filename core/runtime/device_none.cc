// A build without CUDA: no cards, and nobody can have got hold of anything that lives on one.
#include "core/runtime/check.h"
#include "core/runtime/cuda_device.h"

namespace trainer::cuda_device {
namespace {

[[noreturn]] void no_cuda() {
  fail(ExitCode::config, "this build has no CUDA; set train.device: cpu, or build with a CUDA toolkit");
}

}  // namespace

int count() {
  return 0;
}
DeviceProperties properties(int /*index*/) {
  no_cuda();
}
void make_current(int /*index*/) {
  no_cuda();
}
std::shared_ptr<void> allocate(int /*index*/, std::int64_t /*bytes*/, std::string_view /*purpose*/) {
  no_cuda();
}
std::shared_ptr<void> allocate_pinned(int /*index*/, std::int64_t /*bytes*/, std::string_view /*purpose*/) {
  no_cuda();
}
void copy(void* /*stream*/, void* /*to*/, const void* /*from*/, std::int64_t /*bytes*/, Way /*way*/) {
  no_cuda();
}
void fill_bytes(void* /*stream*/, void* /*to*/, int /*value*/, std::int64_t /*bytes*/) {
  no_cuda();
}
void synchronize(void* /*stream*/) {
  no_cuda();
}
void call_host(void* /*stream*/, void (* /*call*/)(void*), void* /*argument*/) {
  no_cuda();
}
std::shared_ptr<void> make_stream(int /*index*/, StreamPriority /*priority*/) {
  no_cuda();
}
std::shared_ptr<void> make_event(int /*index*/) {
  no_cuda();
}
void record(void* /*event*/, void* /*stream*/) {
  no_cuda();
}
void wait(void* /*event*/, void* /*stream*/) {
  no_cuda();
}
bool reached(void* /*event*/) {
  no_cuda();
}
void synchronize_event(void* /*event*/) {
  no_cuda();
}
double milliseconds(void* /*start*/, void* /*end*/) {
  no_cuda();
}

}  // namespace trainer::cuda_device
