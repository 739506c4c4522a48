// Linear layers as GEMMs. A row-major matrix is the transpose of the column-major one that cuBLAS sees, so each product
// is asked for transposed:
//   y^T = w x^T        dx^T = w^T dy^T        dw^T = x^T dy
#include <algorithm>
#include <cstdint>

#include "kernels/cuda/backend.h"
#include "kernels/ops.h"
#include "kernels/shapes.h"

namespace trainer::ops::cuda {
namespace {

/// Largest power of two up to 256 that divides every address: what the library may assume. 256 where it can be, so that
/// equal shapes share a choice.
int common_alignment(std::initializer_list<const void*> pointers) {
  std::uintptr_t bits = 256;
  for (const void* pointer : pointers) bits |= reinterpret_cast<std::uintptr_t>(pointer);
  return static_cast<int>(bits & (~bits + 1));
}

void run(const Context& ctx, GemmShape shape, const GemmOperands& operands) {
  shape.alignment = common_alignment({operands.a, operands.b, operands.c, operands.bias});
  ctx.backend->gemms.run(ctx, ctx.backend->cublas_lt, shape, operands);
}

}  // namespace

void linear_forward(const Context& ctx, const LinearForwardArgs& args) {
  const auto& [x, w, bias, y, accumulate] = args;
  check_shape(w, "linear_forward: w", x.dtype, y.cols, x.cols);
  check_shape(y, "linear_forward: y", x.dtype, x.rows, w.rows);
  run(ctx,
      {.m = y.cols,
       .n = y.rows,
       .k = x.cols,
       .lda = w.stride,
       .ldb = x.stride,
       .ldc = y.stride,
       .transpose_a = true,
       .transpose_b = false,
       .in = x.dtype,
       .out = y.dtype,
       .accumulate = accumulate,
       .bias = static_cast<bool>(bias)},
      {.a = w.data, .b = x.data, .bias = bias.data, .c = y.data});
}

void linear_backward_input(const Context& ctx, const LinearBackwardInputArgs& args) {
  const auto& [dy, w, dx, accumulate] = args;
  check_shape(w, "linear_backward_input: w", dy.dtype, dy.cols, dx.cols);
  check_shape(dx, "linear_backward_input: dx", dy.dtype, dy.rows, w.cols);
  run(ctx,
      {.m = dx.cols,
       .n = dx.rows,
       .k = dy.cols,
       .lda = w.stride,
       .ldb = dy.stride,
       .ldc = dx.stride,
       .transpose_a = false,
       .transpose_b = false,
       .in = dy.dtype,
       .out = dx.dtype,
       .accumulate = accumulate},
      {.a = w.data, .b = dy.data, .bias = nullptr, .c = dx.data});
}

void linear_backward_weight(const Context& ctx, const LinearBackwardWeightArgs& args) {
  const auto& [dy, x, dw, accumulate] = args;
  check_shape(x, "linear_backward_weight: x", dy.dtype, dy.rows, dw.cols);
  check_shape(dw, "linear_backward_weight: dw", Dtype::f32, dy.cols, x.cols);
  run(ctx,
      {.m = dw.cols,
       .n = dw.rows,
       .k = dy.rows,
       .lda = x.stride,
       .ldb = dy.stride,
       .ldc = dw.stride,
       .transpose_a = false,
       .transpose_b = true,
       .in = dy.dtype,
       .out = dw.dtype,
       .accumulate = accumulate},
      {.a = x.data, .b = dy.data, .bias = nullptr, .c = dw.data});
}

}  // namespace trainer::ops::cuda
