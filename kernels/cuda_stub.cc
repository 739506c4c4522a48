// Stands in for kernels/cuda in a build without it: each op says so.
#include "kernels/backend.h"
#include "kernels/ops.h"

namespace trainer {

// NOLINTNEXTLINE(performance-unnecessary-value-param): the real one keeps it
std::shared_ptr<CudaBackend> make_cuda_backend(const Context&, Warn) {
  fail(ExitCode::config, "this build has no CUDA kernels; set train.device: cpu, or build with a CUDA toolkit");
}

}  // namespace trainer

namespace trainer::ops::cuda {

#define TRAINER_MISSING_OP(name, Args)                                                                       \
  void name(const Context&, const Args&) {                                                                   \
    fail(ExitCode::config, "this build has no CUDA kernel for '" #name "'; set train.device: cpu to go on"); \
  }
TRAINER_OPS(TRAINER_MISSING_OP)
#undef TRAINER_MISSING_OP

}  // namespace trainer::ops::cuda
