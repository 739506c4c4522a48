// What every op is handed: where to run. Passed by reference, never stored in a global. C++17: device code includes
// this.
#pragma once
#include <cstdint>

namespace trainer {

enum class DeviceKind : unsigned char { cpu, cuda };

struct Device {
  DeviceKind kind = DeviceKind::cpu;
  int index = 0;  // CUDA device ordinal of this process
};

/// Which attention kernels serve a CUDA context. automatic: the faster of those that can.
enum class AttentionChoice : std::uint8_t { automatic, cudnn, builtin };

/// Library handles and what was learnt about the card: kernels/cuda/backend.h; made by make_cuda_backend.
struct CudaBackend;
/// Times the ops and keeps their calls: kernels/op_profiler.h.
class OpProfiler;

/// Cheap to copy; owns nothing (core/runtime/device.h: DeviceContext does). On the CPU only `device` is used.
struct Context {
  Device device;
  void* stream = nullptr;  // cudaStream_t: ops are queued here, one after another
  /// Scratch of whichever op runs on `stream`: partial sums, GEMM workspace. A copy of the context that has another
  /// stream needs a workspace of its own.
  void* workspace = nullptr;
  std::int64_t workspace_bytes = 0;
  CudaBackend* backend = nullptr;
  bool deterministic = true;  // the same bits from run to run, also where that is slower
  AttentionChoice attention = AttentionChoice::automatic;
  OpProfiler* profiler = nullptr;  // null, except while something is measured
};

}  // namespace trainer
