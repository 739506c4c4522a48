#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "core/runtime/cuda_check.h"
#include "core/runtime/cuda_device.h"

namespace trainer::cuda_device {
namespace {

cudaStream_t as_stream(void* stream) {
  return static_cast<cudaStream_t>(stream);
}
cudaEvent_t as_event(void* event) {
  return static_cast<cudaEvent_t>(event);
}

/// Makes a device current until the end of the scope, for calls that act on the current one.
class CurrentDevice {
 public:
  explicit CurrentDevice(int index) {
    check_cuda(cudaGetDevice(&before_), "cudaGetDevice");
    check_cuda(cudaSetDevice(index), "cudaSetDevice");
  }
  ~CurrentDevice() { cudaSetDevice(before_); }
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;

 private:
  int before_ = 0;
};

int attribute(cudaDeviceAttr which, int index) {
  int value = 0;
  check_cuda(cudaDeviceGetAttribute(&value, which, index), "cudaDeviceGetAttribute");
  return value;
}

std::int64_t free_bytes() {
  std::size_t free = 0, total = 0;
  cudaMemGetInfo(&free, &total);
  return static_cast<std::int64_t>(free);
}

/// What the kernel says about the place of a PCI device; -1 when it does not.
int numa_node(std::string pci_bus_id) {
  std::transform(pci_bus_id.begin(), pci_bus_id.end(), pci_bus_id.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  int node = -1;
  std::ifstream file("/sys/bus/pci/devices/" + pci_bus_id + "/numa_node");
  return file >> node ? node : -1;
}

/// Between cards, atomic operations exist over NVLink only.
std::vector<int> nvlink_peers(int index, int cards) {
  std::vector<int> peers;
  for (int other = 0; other < cards; ++other) {
    int atomics = 0;
    if (other == index) continue;
    check_cuda(cudaDeviceGetP2PAttribute(&atomics, cudaDevP2PAttrNativeAtomicSupported, index, other),
               "cudaDeviceGetP2PAttribute");
    if (atomics != 0) peers.push_back(other);
  }
  return peers;
}

}  // namespace

int count() {
  int n = 0;
  const cudaError_t status = cudaGetDeviceCount(&n);
  if (status == cudaErrorInsufficientDriver || status == cudaErrorNoDevice) {
    cudaGetLastError();  // not sticky: the next call must not report it
    return 0;
  }
  check_cuda(status, "cudaGetDeviceCount");
  return n;
}

DeviceProperties properties(int index) {
  const int cards = count();
  if (index < 0 || index >= cards)
    fail(ExitCode::config, "there is no CUDA device {}: this process sees {}", index, cards);
  const CurrentDevice current(index);
  cudaDeviceProp found{};
  check_cuda(cudaGetDeviceProperties(&found, index), "cudaGetDeviceProperties");
  std::array<char, 32> bus{};
  check_cuda(cudaDeviceGetPCIBusId(bus.data(), static_cast<int>(bus.size()), index), "cudaDeviceGetPCIBusId");
  return {.name = found.name,
          .sm = 10 * attribute(cudaDevAttrComputeCapabilityMajor, index) +
                attribute(cudaDevAttrComputeCapabilityMinor, index),
          .sm_count = attribute(cudaDevAttrMultiProcessorCount, index),
          .total_bytes = static_cast<std::int64_t>(found.totalGlobalMem),
          .free_bytes = free_bytes(),
          .pci_bus_id = bus.data(),
          .numa_node = numa_node(bus.data()),
          .nvlink_peers = nvlink_peers(index, cards)};
}

void make_current(int index) {
  check_cuda(cudaSetDevice(index), "cudaSetDevice");
}

std::shared_ptr<void> allocate(int index, std::int64_t bytes, std::string_view purpose) {
  const CurrentDevice current(index);
  const auto size = static_cast<std::size_t>(bytes > 0 ? bytes : 1);
  void* memory = nullptr;
  const cudaError_t status = cudaMalloc(&memory, size);
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    fail(ExitCode::memory,
         "cannot allocate {} bytes ({:.2f} GiB) on CUDA device {} for {}: {} bytes ({:.2f} GiB) are free", bytes,
         static_cast<double>(bytes) / (1 << 30), index, purpose, free_bytes(),
         static_cast<double>(free_bytes()) / (1 << 30));
  }
  check_cuda(status, "cudaMalloc");
  std::shared_ptr<void> owner(memory, [](void* p) { cudaFree(p); });
  check_cuda(cudaMemset(memory, 0, size), "cudaMemset");
  check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");  // streams do not wait for the default stream
  return owner;
}

std::shared_ptr<void> allocate_pinned(int index, std::int64_t bytes, std::string_view purpose) {
  const CurrentDevice current(index);
  const auto size = static_cast<std::size_t>(bytes > 0 ? bytes : 1);
  void* memory = nullptr;
  if (cudaHostAlloc(&memory, size, cudaHostAllocPortable) != cudaSuccess) {
    cudaGetLastError();
    fail(ExitCode::memory, "cannot allocate {} bytes of pinned host memory for {}", bytes, purpose);
  }
  std::memset(memory, 0, size);
  return {memory, [](void* p) { cudaFreeHost(p); }};
}

void copy(void* stream, void* to, const void* from, std::int64_t bytes, Way way) {
  static constexpr std::array<cudaMemcpyKind, 3> kKinds = {cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost,
                                                           cudaMemcpyDeviceToDevice};
  const cudaMemcpyKind kind = kKinds[static_cast<std::size_t>(way)];
  check_cuda(cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), kind, as_stream(stream)), "cudaMemcpyAsync");
}

void fill_bytes(void* stream, void* to, int value, std::int64_t bytes) {
  check_cuda(cudaMemsetAsync(to, value, static_cast<std::size_t>(bytes), as_stream(stream)), "cudaMemsetAsync");
}

void synchronize(void* stream) {
  check_cuda(cudaStreamSynchronize(as_stream(stream)), "cudaStreamSynchronize");
}

void call_host(void* stream, void (*call)(void*), void* argument) {
  check_cuda(cudaLaunchHostFunc(as_stream(stream), call, argument), "cudaLaunchHostFunc");
}

std::shared_ptr<void> make_stream(int index, StreamPriority priority) {
  const CurrentDevice current(index);
  int lowest = 0, highest = 0;
  check_cuda(cudaDeviceGetStreamPriorityRange(&lowest, &highest), "cudaDeviceGetStreamPriorityRange");
  cudaStream_t stream = nullptr;
  check_cuda(
      cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, priority == StreamPriority::high ? highest : lowest),
      "cudaStreamCreateWithPriority");
  return {stream, [](void* p) { cudaStreamDestroy(as_stream(p)); }};
}

std::shared_ptr<void> make_event(int index) {
  const CurrentDevice current(index);
  cudaEvent_t event = nullptr;
  check_cuda(cudaEventCreate(&event), "cudaEventCreate");
  return {event, [](void* p) { cudaEventDestroy(as_event(p)); }};
}

void record(void* event, void* stream) {
  check_cuda(cudaEventRecord(as_event(event), as_stream(stream)), "cudaEventRecord");
}

void wait(void* event, void* stream) {
  check_cuda(cudaStreamWaitEvent(as_stream(stream), as_event(event), 0), "cudaStreamWaitEvent");
}

bool reached(void* event) {
  const cudaError_t status = cudaEventQuery(as_event(event));
  if (status == cudaErrorNotReady) return false;
  check_cuda(status, "cudaEventQuery");
  return true;
}

void synchronize_event(void* event) {
  check_cuda(cudaEventSynchronize(as_event(event)), "cudaEventSynchronize");
}

double milliseconds(void* start, void* end) {
  float elapsed = 0;
  check_cuda(cudaEventElapsedTime(&elapsed, as_event(start), as_event(end)), "cudaEventElapsedTime");
  return static_cast<double>(elapsed);
}

}  // namespace trainer::cuda_device
