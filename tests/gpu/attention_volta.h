// The flash attention of sm_70, on whatever card there is: its units run everywhere, which is how they are tested
// without a Volta card. fp16, heads of 64 or 128.
#pragma once
#include "kernels/ops.h"

namespace trainer::testing {

void volta_attention_forward(const Context& ctx, const ops::AttentionForwardArgs& args);
void volta_attention_backward(const Context& ctx, const ops::AttentionBackwardArgs& args);

}  // namespace trainer::testing
