// Which attention serves a call: cuDNN's where it can, our own otherwise.
#include "kernels/cuda/attention_cudnn.h"
#include "kernels/cuda/attention_plain.h"
#include "kernels/ops.h"

namespace trainer::ops::cuda {

void attention_forward(const Context& ctx, const AttentionForwardArgs& args) {
  if (cudnn_attention_fits(ctx, args.shape, args.q, args.q_starts, args.k))
    cudnn_attention_forward(ctx, args);
  else
    plain_attention_forward(ctx, args);
}

void attention_backward(const Context& ctx, const AttentionBackwardArgs& args) {
  if (cudnn_attention_fits(ctx, args.shape, args.q, args.q_starts, args.k))
    cudnn_attention_backward(ctx, args);
  else
    plain_attention_backward(ctx, args);
}

}  // namespace trainer::ops::cuda
