// Linear layers as GEMMs. A row-major matrix is the transpose of the column-major one that cuBLAS sees, so each product
// is asked for transposed:
//   y^T = w x^T        dx^T = w^T dy^T        dw^T = x^T dy
// Bias, activation function and the gradient of the bias ride in the GEMM where the library can do that and it is
// faster; elsewhere a kernel of ours follows.
#include <cstdint>

#include "core/runtime/divide.h"
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

GemmShape aligned(GemmShape shape, const GemmOperands& operands) {
  shape.alignment =
      common_alignment({operands.a, operands.b, operands.c, operands.addend, operands.bias, operands.aux});
  return shape;
}

void run(const Context& ctx, const GemmShape& shape, const GemmOperands& operands) {
  ctx.backend->gemms.run(ctx, ctx.backend->cublas_lt, aligned(shape, operands), operands);
}

/// Whether the library's epilogues can serve. They want whole 16-byte accesses. In float32 their tanh is not as exact
/// as the type.
bool epilogue_fits(const GemmShape& shape, const GemmOperands& operands) {
  return dtype_size(shape.in) == 2 && shape.m % 8 == 0 && shape.n % 8 == 0 && shape.ldc % 8 == 0 &&
         aligned(shape, operands).alignment >= 16;
}

/// Queues the GEMM with its epilogue. False, and nothing is queued, where the library cannot or `separate`, which gives
/// the same, is faster.
bool run_fused(const Context& ctx, const GemmShape& shape, const GemmOperands& operands,
               const GemmTable::Separate& separate) {
  return epilogue_fits(shape, operands) &&
         ctx.backend->gemms.run_unless_slower(ctx, ctx.backend->cublas_lt, aligned(shape, operands), operands,
                                              separate);
}

/// Sums that the library overwrites although they are to be added to: at the end of the workspace, which the GEMM then
/// does without.
Tensor sums_at_the_end(Context& ctx, std::int64_t n) {
  const std::int64_t bytes = round_up(n * dtype_size(Dtype::f32), kMemoryAlignment);
  ctx.workspace_bytes = (ctx.workspace_bytes - bytes) / kMemoryAlignment * kMemoryAlignment;
  TRAINER_CHECK(ctx.workspace_bytes >= 0, "linear_backward_weight: {} sums do not fit the workspace", n);
  return {static_cast<char*>(ctx.workspace) + ctx.workspace_bytes, Dtype::f32, 1, n, n};
}

}  // namespace

void linear_forward(const Context& ctx, const LinearForwardArgs& args) {
  const Tensor &x = args.x, &w = args.w, &y = args.y, &activated = args.activated;
  check_shape(w, "linear_forward: w", x.dtype, y.cols, x.cols);
  check_shape(y, "linear_forward: y", x.dtype, x.rows, w.rows);
  const GemmShape shape{.m = y.cols,
                        .n = y.rows,
                        .k = x.cols,
                        .lda = w.stride,
                        .ldb = x.stride,
                        .ldc = y.stride,
                        .transpose_a = true,
                        .transpose_b = false,
                        .in = x.dtype,
                        .out = y.dtype,
                        .accumulate = static_cast<bool>(args.addend),
                        .epilogue = args.bias ? GemmEpilogue::bias : GemmEpilogue::none};
  GemmOperands operands{.a = w.data, .b = x.data, .c = y.data, .addend = args.addend.data, .bias = args.bias.data};
  if (args.addend) {
    check_shape(args.addend, "linear_forward: addend", x.dtype, y.rows, y.cols);
    if (args.addend.stride != y.stride) {
      cuda::cast(ctx, {.in = args.addend, .out = y});
      operands.addend = nullptr;
    }
  }
  if (!activated) return run(ctx, shape, operands);

  check_shape(activated, "linear_forward: activated", x.dtype, y.rows, y.cols);
  TRAINER_CHECK(!args.addend, "linear_forward: activated and addend");
  const auto separate = [&] {
    run(ctx, shape, operands);
    cuda::activation_forward(ctx, {.kind = args.activation, .x = y, .out = activated});
  };
  if (args.activation != Activation::gelu_tanh || activated.stride != y.stride) return separate();
  GemmShape fused = shape;
  fused.epilogue = args.bias ? GemmEpilogue::gelu_bias : GemmEpilogue::gelu;
  const GemmOperands outputs{.a = w.data, .b = x.data, .c = activated.data, .bias = args.bias.data, .aux = y.data};
  if (!run_fused(ctx, fused, outputs, separate)) separate();
}

void linear_backward_input(const Context& ctx, const LinearBackwardInputArgs& args) {
  const Tensor &dy = args.dy, &w = args.w, &dx = args.dx, &input = args.activation_input;
  check_shape(w, "linear_backward_input: w", dy.dtype, dy.cols, dx.cols);
  check_shape(dx, "linear_backward_input: dx", dy.dtype, dy.rows, w.cols);
  const GemmShape shape{.m = dx.cols,
                        .n = dx.rows,
                        .k = dy.cols,
                        .lda = w.stride,
                        .ldb = dy.stride,
                        .ldc = dx.stride,
                        .transpose_a = false,
                        .transpose_b = false,
                        .in = dy.dtype,
                        .out = dx.dtype,
                        .accumulate = args.accumulate};
  const GemmOperands operands{.a = w.data, .b = dy.data, .c = dx.data};
  if (!input) return run(ctx, shape, operands);

  check_shape(input, "linear_backward_input: activation_input", dy.dtype, dx.rows, dx.cols);
  TRAINER_CHECK(!args.accumulate, "linear_backward_input: activation_input and accumulate");
  const auto separate = [&] {
    run(ctx, shape, operands);
    cuda::activation_backward(ctx, {.kind = args.activation, .x = input, .dout = dx, .dx = dx});
  };
  if (args.activation != Activation::gelu_tanh || input.stride != dx.stride) return separate();
  GemmShape fused = shape;
  fused.epilogue = GemmEpilogue::gelu_gradient;
  const GemmOperands with_input{.a = w.data, .b = dy.data, .c = dx.data, .aux = input.data};
  if (!run_fused(ctx, fused, with_input, separate)) separate();
}

void linear_backward_weight(const Context& ctx, const LinearBackwardWeightArgs& args) {
  const Tensor &dy = args.dy, &x = args.x, &dw = args.dw, &dbias = args.dbias;
  check_shape(x, "linear_backward_weight: x", dy.dtype, dy.rows, dw.cols);
  check_shape(dw, "linear_backward_weight: dw", dw.dtype, dy.cols, x.cols);
  check_weight_gradient(dy.dtype, dw.dtype, args.accumulate);
  const GemmShape shape{.m = dw.cols,
                        .n = dw.rows,
                        .k = dy.rows,
                        .lda = x.stride,
                        .ldb = dy.stride,
                        .ldc = dw.stride,
                        .transpose_a = false,
                        .transpose_b = true,
                        .in = dy.dtype,
                        .out = dw.dtype,
                        .accumulate = args.accumulate};
  const GemmOperands operands{.a = x.data, .b = dy.data, .c = dw.data};
  if (!dbias) return run(ctx, shape, operands);

  TRAINER_CHECK(vector_of<float>(dbias, "linear_backward_weight: dbias", dy.cols) != nullptr, "no dbias");
  const auto separate = [&] {
    run(ctx, shape, operands);
    cuda::bias_backward(ctx, {.dy = dy, .dbias = dbias, .accumulate = args.accumulate});
  };
  if (dw.dtype != dbias.dtype) return separate();  // the library's sums of b are of the output's type
  GemmShape fused = shape;
  fused.epilogue = GemmEpilogue::sums_of_b;
  Context inner = ctx;
  const Tensor sums = args.accumulate ? sums_at_the_end(inner, dy.cols) : dbias.flat();
  const GemmOperands with_sums{.a = x.data, .b = dy.data, .c = dw.data, .bias = sums.data};
  if (!run_fused(inner, fused, with_sums, separate)) return separate();
  if (args.accumulate) cuda::add(ctx, {.a = dbias.flat(), .b = sums, .out = dbias.flat()});
}

}  // namespace trainer::ops::cuda
