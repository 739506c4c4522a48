// Our own flash attention (sm_70 and newer): fp16, and from sm_80 on bf16; head sizes 64, 80, 96 and 128; sequences of
// any lengths, sliding windows, dropout on the probabilities.
#pragma once
#include "kernels/ops.h"

namespace trainer::ops::cuda {

/// Whether type, head size, alignment (16 bytes) and card allow it.
bool flash_attention_fits(const Context& ctx, const AttentionForwardArgs& args);
bool flash_attention_fits(const Context& ctx, const AttentionBackwardArgs& args);
void flash_attention_forward(const Context& ctx, const AttentionForwardArgs& args);
/// Needs four bytes of workspace a query and head.
void flash_attention_backward(const Context& ctx, const AttentionBackwardArgs& args);

}  // namespace trainer::ops::cuda
