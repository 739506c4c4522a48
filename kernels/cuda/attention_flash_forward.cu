#include "kernels/cuda/attention_flash.h"
#include "kernels/cuda/attention_flash_forward.cuh"
#include "kernels/cuda/attention_flash_units.cuh"

namespace trainer::ops::cuda {

bool flash_attention_fits(const Context& ctx, const AttentionForwardArgs& args) {
  return flash_dtype(ctx, args.q.dtype) && flash_head_dim(args.shape.head_dim) &&
         all_aligned16(args.q, args.k, args.v, args.out);
}

void flash_attention_forward(const Context& ctx, const AttentionForwardArgs& args) {
  visit_flash(ctx, args.q.dtype, args.shape.head_dim, [&](auto units, auto head_dim) {
    flash_forward<typename decltype(units)::type, decltype(head_dim)::value>(ctx, args);
  });
}

}  // namespace trainer::ops::cuda
