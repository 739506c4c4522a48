// Which attention serves a call. Automatic: cuDNN's, which is the faster one; our flash attention for what it refuses
// (older cards, dropout, documents on cards other than Hopper's or with fixed bits), and the plain kernels for what
// neither can do (float32, other head sizes, unaligned rows). The two may serve one layer: their lse is the same.
#include "kernels/cuda/attention_cudnn.h"
#include "kernels/cuda/attention_flash.h"
#include "kernels/cuda/attention_plain.h"
#include "kernels/ops.h"

namespace trainer::ops::cuda {
namespace {

enum class Kernels { cudnn, flash, plain };

template <class Args>
Kernels kernels_for(const Context& ctx, const Args& args) {
  if (ctx.attention != AttentionChoice::builtin) {
    const bool only = ctx.attention == AttentionChoice::cudnn;
    const bool fits = cudnn_attention_fits(ctx, args.shape, args.q, args.k, args.q_starts, args.kv_starts);
    if (fits && (only || cudnn_attention_serves(ctx, args))) return Kernels::cudnn;
    if (only)
      fail(ExitCode::config,
           "train.attention: cudnn does not serve {} with heads of {} on this card and build; right would be auto or "
           "builtin, or on sm_80 and newer, in a build with cuDNN, bf16 or fp16, sequences of one length and a "
           "head_dim of at most 128 that divides by 8; documents of several lengths want sm_90, cuDNN 9.19, "
           "deterministic false and a head_dim that divides by 16",
           dtype_name(args.q.dtype), args.shape.head_dim);
  }
  return flash_attention_fits(ctx, args) ? Kernels::flash : Kernels::plain;
}

}  // namespace

void attention_forward(const Context& ctx, const AttentionForwardArgs& args) {
  switch (kernels_for(ctx, args)) {
    case Kernels::cudnn:
      return cudnn_attention_forward(ctx, args);
    case Kernels::flash:
      return flash_attention_forward(ctx, args);
    case Kernels::plain:
      return plain_attention_forward(ctx, args);
  }
}

void attention_backward(const Context& ctx, const AttentionBackwardArgs& args) {
  switch (kernels_for(ctx, args)) {
    case Kernels::cudnn:
      return cudnn_attention_backward(ctx, args);
    case Kernels::flash:
      return flash_attention_backward(ctx, args);
    case Kernels::plain:
      return plain_attention_backward(ctx, args);
  }
}

}  // namespace trainer::ops::cuda
