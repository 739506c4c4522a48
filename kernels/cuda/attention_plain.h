// Attention in float32 arithmetic as it is defined: the reference on the card, and for what no fast kernel takes.
#pragma once
#include "kernels/ops.h"

namespace trainer::ops::cuda {

void plain_attention_forward(const Context& ctx, const AttentionForwardArgs& args);
void plain_attention_backward(const Context& ctx, const AttentionBackwardArgs& args);

}  // namespace trainer::ops::cuda
