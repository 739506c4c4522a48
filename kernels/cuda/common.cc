#include "kernels/cuda/backend.h"
#include "kernels/ops.h"

namespace trainer::ops::cuda {

int sm_count(const Context& ctx) {
  TRAINER_CHECK(ctx.backend != nullptr, "a CUDA context without its backend (make_cuda_backend)");
  return ctx.backend->properties.sm_count;
}

void* workspace(const Context& ctx, std::int64_t bytes, const char* op) {
  TRAINER_CHECK(bytes <= ctx.workspace_bytes, "{} needs {} bytes of workspace, there are {}", op, bytes,
                ctx.workspace_bytes);
  return ctx.workspace;
}

void refuse_float64(const char* op) {
  fail(ExitCode::config,
       "{}: float64 has no CUDA kernels; set train.device: cpu, or precision.dtype: float32, bf16 or fp16", op);
}

}  // namespace trainer::ops::cuda
