// What the CUDA kernels keep between calls, seen from outside: made once, pointed to by Context::backend.
#pragma once
#include <memory>

#include "core/runtime/context.h"

namespace trainer {

/// For a context on a CUDA device, which must be current; handles run on ctx.stream. Throws Error(config) in a build
/// without CUDA.
std::shared_ptr<CudaBackend> make_cuda_backend(const Context& ctx);

}  // namespace trainer
