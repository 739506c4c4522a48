#include "core/runtime/device.h"

#include <chrono>
#include <cstdlib>
#include <cstring>

#include "core/runtime/check.h"
#include "core/runtime/cuda_device.h"
#include "core/runtime/divide.h"

namespace trainer {
namespace {

using Clock = std::chrono::steady_clock;

bool on_cuda(Device device) {
  return device.kind == DeviceKind::cuda;
}

void copy_on_host(void* to, const void* from, std::int64_t bytes) {
  if (bytes > 0) std::memmove(to, from, static_cast<std::size_t>(bytes));
}

std::shared_ptr<void> allocate_host(std::int64_t bytes, std::string_view purpose) {
  const auto size = static_cast<std::size_t>(round_up(bytes, kMemoryAlignment));
  void* memory = std::aligned_alloc(static_cast<std::size_t>(kMemoryAlignment), size);
  if (memory == nullptr) fail(ExitCode::memory, "cannot allocate {} bytes of host memory for {}", bytes, purpose);
  std::memset(memory, 0, size);
  return {memory, [](void* p) { std::free(p); }};
}

}  // namespace

int device_count() {
  return cuda_device::count();
}

DeviceProperties device_properties(Device device) {
  TRAINER_CHECK(on_cuda(device), "the properties of the CPU are not asked for here");
  return cuda_device::properties(device.index);
}

void make_current(Device device) {
  if (on_cuda(device)) cuda_device::make_current(device.index);
}

std::shared_ptr<void> allocate(Device device, std::int64_t bytes, std::string_view purpose) {
  TRAINER_CHECK(bytes >= 0, "{} bytes for {}", bytes, purpose);
  return on_cuda(device) ? cuda_device::allocate(device.index, bytes, purpose) : allocate_host(bytes, purpose);
}

std::shared_ptr<void> allocate_pinned(Device device, std::int64_t bytes, std::string_view purpose) {
  TRAINER_CHECK(bytes >= 0, "{} bytes for {}", bytes, purpose);
  return on_cuda(device) ? cuda_device::allocate_pinned(device.index, bytes, purpose) : allocate_host(bytes, purpose);
}

void copy_to_device(const Context& ctx, void* to, const void* host_from, std::int64_t bytes) {
  if (on_cuda(ctx.device)) return cuda_device::copy(ctx.stream, to, host_from, bytes, cuda_device::Way::to_device);
  copy_on_host(to, host_from, bytes);
}

void copy_to_host(const Context& ctx, void* host_to, const void* from, std::int64_t bytes) {
  if (on_cuda(ctx.device)) return cuda_device::copy(ctx.stream, host_to, from, bytes, cuda_device::Way::to_host);
  copy_on_host(host_to, from, bytes);
}

void copy(const Context& ctx, void* to, const void* from, std::int64_t bytes) {
  if (on_cuda(ctx.device)) return cuda_device::copy(ctx.stream, to, from, bytes, cuda_device::Way::on_device);
  copy_on_host(to, from, bytes);
}

void fill_bytes(const Context& ctx, void* to, int value, std::int64_t bytes) {
  if (on_cuda(ctx.device)) return cuda_device::fill_bytes(ctx.stream, to, value, bytes);
  if (bytes > 0) std::memset(to, value, static_cast<std::size_t>(bytes));
}

void synchronize(const Context& ctx) {
  if (on_cuda(ctx.device)) cuda_device::synchronize(ctx.stream);
}

double clock_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void read_clock(const Context& ctx, double* seconds) {
  const auto read = [](void* to) { *static_cast<double*>(to) = clock_seconds(); };
  if (on_cuda(ctx.device))
    cuda_device::call_host(ctx.stream, read, seconds);
  else
    read(seconds);
}

Stream::Stream(Device device, StreamPriority priority)
    : handle_(on_cuda(device) ? cuda_device::make_stream(device.index, priority) : nullptr) {}

Event::Event(Device device)
    : device_(device),
      handle_(on_cuda(device) ? cuda_device::make_event(device.index)
                              : std::static_pointer_cast<void>(std::make_shared<Clock::time_point>())) {}

void Event::record(const Context& ctx) {
  if (on_cuda(device_)) return cuda_device::record(handle_.get(), ctx.stream);
  *static_cast<Clock::time_point*>(handle_.get()) = Clock::now();
}

void Event::wait(const Context& ctx) const {
  if (on_cuda(device_)) cuda_device::wait(handle_.get(), ctx.stream);
}

bool Event::reached() const {
  return !on_cuda(device_) || cuda_device::reached(handle_.get());
}

void Event::synchronize() const {
  if (on_cuda(device_)) cuda_device::synchronize_event(handle_.get());
}

double Event::milliseconds_since(const Event& start) const {
  if (on_cuda(device_)) return cuda_device::milliseconds(start.handle_.get(), handle_.get());
  const auto at = [](const Event& event) { return *static_cast<const Clock::time_point*>(event.handle_.get()); };
  return std::chrono::duration<double, std::milli>(at(*this) - at(start)).count();
}

DeviceContext::DeviceContext(Device device, std::int64_t workspace_bytes) : stream_(device) {
  make_current(device);
  context_.device = device;
  context_.stream = stream_.get();
  if (!on_cuda(device)) return;
  workspace_ = allocate(device, workspace_bytes, "the workspace of the kernels");
  context_.workspace = workspace_.get();
  context_.workspace_bytes = workspace_bytes;
}

}  // namespace trainer
