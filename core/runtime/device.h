// Devices, memory and the order of work on them. The same calls serve the CPU, where everything happens at once, and
// CUDA; device_cuda.cc or, in a build without CUDA, device_none.cc stands behind them.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/runtime/context.h"

namespace trainer {

// ---- cards --------------------------------------------------------------------------------------------------------
/// CUDA cards that this process can use; 0 without a card, without a driver, or in a build without CUDA.
int device_count();

struct DeviceProperties {
  std::string name;
  int sm = 0;        // compute capability x 10: 70 Volta, 80 Ampere, 90 Hopper
  int sm_count = 0;  // streaming multiprocessors
  std::int64_t total_bytes = 0;
  std::int64_t free_bytes = 0;  // now
  std::string pci_bus_id;
  int numa_node = -1;             // of the host, -1: not known
  std::vector<int> nvlink_peers;  // cards that it reaches over NVLink, of those that this process sees
};
/// Of a CUDA device. Throws Error(config) when there is no such card.
DeviceProperties device_properties(Device device);

// ---- memory -------------------------------------------------------------------------------------------------------
/// Bytes by which allocations are aligned: cudaMalloc's promise, which memory of the host keeps too.
inline constexpr std::int64_t kMemoryAlignment = 256;

/// `bytes` of zero-filled memory, aligned by kMemoryAlignment, freed with the last copy of the pointer. Throws
/// Error(memory) that says for what (`purpose`), how much, and how much is free.
std::shared_ptr<void> allocate(Device device, std::int64_t bytes, std::string_view purpose);
/// Zero-filled host memory that a CUDA device reads and writes directly, without which copies make the host wait.
/// Ordinary memory for the CPU.
std::shared_ptr<void> allocate_pinned(Device device, std::int64_t bytes, std::string_view purpose);

/// Copies in the order of ctx.stream. The host's memory must stay as it is until the stream has passed the copy.
void copy_to_device(const Context& ctx, void* to, const void* host_from, std::int64_t bytes);
/// As copy_to_device; the bytes are there after synchronize().
void copy_to_host(const Context& ctx, void* host_to, const void* from, std::int64_t bytes);
/// From device to the same device.
void copy(const Context& ctx, void* to, const void* from, std::int64_t bytes);
/// Sets every byte to `value`.
void fill_bytes(const Context& ctx, void* to, int value, std::int64_t bytes);

/// Host memory as ops of ctx can read it: itself on the CPU, a copy in ctx.workspace on CUDA (which must be large
/// enough, and is valid until the next op that needs scratch).
void* stage_in(const Context& ctx, const void* host, std::int64_t bytes);
/// Memory that ops of ctx can write and stage_out() brings to `host`: `host` itself on the CPU, ctx.workspace on CUDA.
void* stage_for_output(const Context& ctx, void* host, std::int64_t bytes);
/// Waits for the ops that wrote `staged`; afterwards the bytes are in `host`.
void stage_out(const Context& ctx, const void* staged, void* host, std::int64_t bytes);

// ---- order --------------------------------------------------------------------------------------------------------
/// Waits until everything queued on ctx.stream is done. Throws Error(other) when a kernel failed.
void synchronize(const Context& ctx);

/// A clock that only moves forward.
double clock_seconds();
/// Writes clock_seconds() to `*seconds` when the stream comes to it; that memory must live until then.
void read_clock(const Context& ctx, double* seconds);

/// Whose thread blocks a card starts first, where both wait.
enum class StreamPriority : std::uint8_t { normal, high };

/// A queue of work. Does not wait for, and is not waited for by, the default stream.
class Stream {
 public:
  explicit Stream(Device device, StreamPriority priority = StreamPriority::normal);
  /// cudaStream_t; null on the CPU.
  void* get() const { return handle_.get(); }

 private:
  std::shared_ptr<void> handle_;
};

/// A mark in a stream. On the CPU a point in time, which is always reached.
class Event {
 public:
  explicit Event(Device device);
  void record(const Context& ctx);
  /// Work queued on ctx.stream from now on starts after the mark was reached. The host does not wait.
  void wait(const Context& ctx) const;
  /// True when the mark was reached, or never made. Does not wait; any thread may ask.
  bool reached() const;
  /// The host waits for the mark.
  void synchronize() const;
  /// Milliseconds from `start`'s mark to this one; both must have been reached.
  double milliseconds_since(const Event& start) const;

 private:
  Device device_;
  std::shared_ptr<void> handle_;  // cudaEvent_t, or a time
};

/// Owns the stream and the workspace of a Context. The caller adds `backend` (kernels/backend.h) to what context()
/// returns.
class DeviceContext {
 public:
  static constexpr std::int64_t kDefaultWorkspace = std::int64_t{64} << 20;

  /// For CUDA makes `device` the current one of the calling thread.
  explicit DeviceContext(Device device, std::int64_t workspace_bytes = kDefaultWorkspace);
  const Context& context() const { return context_; }

 private:
  Stream stream_;
  std::shared_ptr<void> workspace_;
  Context context_;
};

/// Makes the CUDA device current for the calling thread; each thread that queues work needs it once. Nothing on the
/// CPU.
void make_current(Device device);

}  // namespace trainer
