// Ops whose CUDA bodies are not written yet: each says so.
#include "kernels/ops.h"

namespace trainer::ops::cuda {

#define TRAINER_PENDING_OP(name, Args)                            \
  void name(const Context&, const Args&) {                        \
    fail(ExitCode::config, "'" #name "' has no CUDA kernel yet"); \
  }
TRAINER_PENDING_OP(attention_forward, AttentionForwardArgs)
TRAINER_PENDING_OP(attention_backward, AttentionBackwardArgs)
#undef TRAINER_PENDING_OP

}  // namespace trainer::ops::cuda
