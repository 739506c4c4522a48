// What the CUDA kernels keep between calls, seen from outside: made once, pointed to by Context::backend.
#pragma once
#include <functional>
#include <memory>
#include <string>

#include "core/runtime/context.h"

namespace trainer {

/// Takes a sentence that the user should read.
using Warn = std::function<void(const std::string& sentence)>;

/// For a context on a CUDA device, which must be current; handles run on ctx.stream. `warn` gets what the kernels do in
/// another way than asked, once each; every rank finds the same, so the caller decides where it is read. Throws
/// Error(config) in a build without CUDA.
std::shared_ptr<CudaBackend> make_cuda_backend(const Context& ctx, Warn warn = {});

}  // namespace trainer
