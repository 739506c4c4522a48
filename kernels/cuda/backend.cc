#include "kernels/cuda/backend.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <utility>

#include "core/runtime/check.h"

namespace trainer {
namespace {

/// What a choice of GEMM algorithm holds for: the card and the library, as one word each.
std::string gemm_environment(std::string card) {
  std::replace(card.begin(), card.end(), ' ', '_');
  return fmt::format("{} {}", card, cublasLtGetVersion());
}

}  // namespace

CudaBackend::CudaBackend(const Context& ctx, Warn warn)
    : properties(device_properties(ctx.device)), gemms(gemm_environment(properties.name)), attention(std::move(warn)) {
  const cublasStatus_t status = cublasLtCreate(&cublas_lt);
  if (status != CUBLAS_STATUS_SUCCESS)
    fail(ExitCode::other, "cuBLASLt: cublasLtCreate: {}", cublasLtGetStatusString(status));
}

CudaBackend::~CudaBackend() {
  if (cublas_lt != nullptr) cublasLtDestroy(cublas_lt);
}

std::shared_ptr<CudaBackend> make_cuda_backend(const Context& ctx, Warn warn) {
  return std::make_shared<CudaBackend>(ctx, std::move(warn));
}

}  // namespace trainer
