// The arithmetic of reductions: the one place that fixes their order and rounding.
#pragma once
#include <cstdint>

#include "core/runtime/dtype.h"
#include "parallel/communicator.h"

namespace trainer {

/// out[i] = sources[0][i] op sources[1][i] op ... op sources[count - 1][i] for i < n, added in this order, in float32
/// for 16-bit floats and in the type itself otherwise (integers wrap), rounded once. max and min give NaN when any
/// source is NaN. `out` may be one of the sources.
void reduce_in_order(Dtype dtype, ReduceOp op, const void* const* sources, int count, std::int64_t n, void* out);

}  // namespace trainer
