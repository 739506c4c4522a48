// From run-time values to the kernels' template arguments.
#pragma once
#include <type_traits>

#include "kernels/cuda/attention_flash_mma.cuh"
#include "kernels/cuda/backend.h"

namespace trainer::ops::cuda {

inline bool flash_head_dim(int64_t head_dim) {
  return head_dim == 64 || head_dim == 80 || head_dim == 96 || head_dim == 128;
}
inline bool flash_dtype(const Context& ctx, Dtype dtype) {
  return dtype == Dtype::f16 || (dtype == Dtype::bf16 && ctx.backend->properties.sm >= 80);
}

template <int Value>
using HeadDim = std::integral_constant<int, Value>;

template <class Body>
void visit_head_dim(int64_t head_dim, const Body& body) {
  TRAINER_CHECK(flash_head_dim(head_dim), "flash attention has no kernel for heads of {}", head_dim);
  if (head_dim == 64) return body(HeadDim<64>{});
  if (head_dim == 80) return body(HeadDim<80>{});
  if (head_dim == 96) return body(HeadDim<96>{});
  body(HeadDim<128>{});
}

/// Calls body(TypeTag<units>, HeadDim) for the card's units, the element type and the head size.
template <class Body>
void visit_flash(const Context& ctx, Dtype dtype, int64_t head_dim, const Body& body) {
  TRAINER_CHECK(flash_dtype(ctx, dtype), "flash attention has no kernel for {} on sm_{}", dtype_name(dtype),
                ctx.backend->properties.sm);
  visit_head_dim(head_dim, [&](auto size) {
    if (dtype == Dtype::bf16)
      body(TypeTag<AmpereMma<bf16>>{}, size);
    else if (ctx.backend->properties.sm >= 80)
      body(TypeTag<AmpereMma<f16>>{}, size);
    else
      body(TypeTag<VoltaMma>{}, size);
  });
}

}  // namespace trainer::ops::cuda
