// Picks the implementation of each op by the device of the context, and names it for profilers.
#include "kernels/op_profiler.h"
#include "kernels/ops.h"

namespace trainer::ops {

#define TRAINER_DISPATCH_OP(name, Args)                                 \
  void name(const Context& ctx, const Args& args) {                     \
    const TraceRange range(ctx, #name);                                 \
    if (ctx.profiler != nullptr) ctx.profiler->is_op(args, &ops::name); \
    if (ctx.device.kind == DeviceKind::cuda)                            \
      cuda::name(ctx, args);                                            \
    else                                                                \
      cpu::name(ctx, args);                                             \
  }
TRAINER_OPS(TRAINER_DISPATCH_OP)
#undef TRAINER_DISPATCH_OP

}  // namespace trainer::ops
