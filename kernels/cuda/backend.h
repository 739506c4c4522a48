// What the CUDA kernels keep between calls. One a context; used by the thread that queues work on its stream.
#pragma once
#include <cublasLt.h>

#include "core/runtime/device.h"
#include "kernels/backend.h"
#include "kernels/cuda/attention_cudnn.h"
#include "kernels/cuda/gemm_cublaslt.h"

namespace trainer {

struct CudaBackend {
  CudaBackend(const Context& ctx, Warn warn);
  ~CudaBackend();
  CudaBackend(const CudaBackend&) = delete;
  CudaBackend& operator=(const CudaBackend&) = delete;

  DeviceProperties properties;
  cublasLtHandle_t cublas_lt = nullptr;
  GemmTable gemms;
  AttentionPlans attention;
};

}  // namespace trainer
