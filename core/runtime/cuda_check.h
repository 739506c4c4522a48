// Return codes of the CUDA runtime, for the sources that include it.
#pragma once
#include <cuda_runtime_api.h>

#include "core/runtime/check.h"

namespace trainer {

/// Throws Error(other) that names the call when it failed. An error of an earlier asynchronous kernel may show here.
inline void check_cuda(cudaError_t status, const char* call) {
  if (status != cudaSuccess)
    fail(ExitCode::other, "CUDA: {}: {} ({})", call, cudaGetErrorString(status), cudaGetErrorName(status));
}

}  // namespace trainer
