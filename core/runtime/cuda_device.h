// What device.cc asks of CUDA, without CUDA's headers: device_cuda.cc does it, device_none.cc says that it cannot be
// done. Streams and events are opaque.
#pragma once
#include <cstdint>
#include <memory>
#include <string_view>

#include "core/runtime/device.h"

namespace trainer::cuda_device {

enum class Way : std::uint8_t { to_device, to_host, on_device };

int count();
DeviceProperties properties(int index);
void make_current(int index);
std::shared_ptr<void> allocate(int index, std::int64_t bytes, std::string_view purpose);
std::shared_ptr<void> allocate_pinned(int index, std::int64_t bytes, std::string_view purpose);
void copy(void* stream, void* to, const void* from, std::int64_t bytes, Way way);
void fill_bytes(void* stream, void* to, int value, std::int64_t bytes);
void synchronize(void* stream);
void call_host(void* stream, void (*call)(void*), void* argument);
std::shared_ptr<void> make_stream(int index, StreamPriority priority);
std::shared_ptr<void> make_event(int index);
void record(void* event, void* stream);
void wait(void* event, void* stream);
bool reached(void* event);
void synchronize_event(void* event);
double milliseconds(void* start, void* end);

}  // namespace trainer::cuda_device
