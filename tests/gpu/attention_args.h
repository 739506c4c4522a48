// Attention calls of the tests.
#pragma once
#include "kernels/ops.h"

namespace trainer::testing {

/// The forward call whose gradients `args` asks for.
inline ops::AttentionForwardArgs forward_of(const ops::AttentionBackwardArgs& args) {
  return {.shape = args.shape,
          .q = args.q,
          .k = args.k,
          .v = args.v,
          .q_starts = args.q_starts,
          .kv_starts = args.kv_starts,
          .out = args.out,
          .lse = args.lse};
}

}  // namespace trainer::testing
