// Linear layers: one matrix product each, with what belongs to its output done before that is rounded.
#include "kernels/cpu/activation.h"
#include "kernels/cpu/gemm.h"

namespace trainer::ops::cpu {
namespace {

/// body(first, count) over [0, n) in tiles. 16-bit tensors are widened a tile at a time, to bound the scratch memory;
/// float and double need no copy and are taken whole.
template <class T, class F>
void for_tiles(std::int64_t n, const F& body) {
  const std::int64_t tile = is_narrow<T> ? 1024 : n;
  for (std::int64_t first = 0; first < n; first += tile) body(first, std::min(tile, n - first));
}

/// y = addend + bias, where each may be absent. addend may be y.
template <class T>
void start_rows(Matrix<Acc<T>> y, const Tensor& addend, const T* bias) {
  const Rows<T> from = addend ? rows_of<T>(addend) : Rows<T>{};
  parallel_for(y.rows, y.cols, [&](std::int64_t row) {
    Acc<T>* to = y.data + row * y.stride;
    for (std::int64_t col = 0; col < y.cols; ++col)
      to[col] = (addend ? widen(from[row][col]) : Acc<T>{0}) + (bias != nullptr ? widen(bias[col]) : Acc<T>{0});
  });
}

/// out = f(y), rounded.
template <class T>
void activate_rows(Activation kind, Matrix<Acc<T>> y, const Tensor& out) {
  visit_gelu(kind, [&]<class Function>(Function) {
    const Rows<T> to = rows_of<T>(out);
    parallel_for(y.rows, 8 * y.cols, [&](std::int64_t row) {
      const Acc<T>* from = y.data + row * y.stride;
      for (std::int64_t col = 0; col < y.cols; ++col) to[row][col] = narrow<T>(Function::value(from[col]));
    });
  });
}

/// d *= f'(input).
template <class T>
void multiply_by_derivative(Activation kind, const Tensor& input, Matrix<Acc<T>> d) {
  visit_gelu(kind, [&]<class Function>(Function) {
    const Rows<T> x = rows_of<T>(input);
    parallel_for(d.rows, 8 * d.cols, [&](std::int64_t row) {
      Acc<T>* to = d.data + row * d.stride;
      for (std::int64_t col = 0; col < d.cols; ++col) to[col] *= Function::derivative(widen(x[row][col]));
    });
  });
}

}  // namespace

void linear_forward(const Context&, const LinearForwardArgs& args) {
  const std::int64_t tokens = args.x.rows, inputs = args.x.cols, outputs = args.w.rows;
  check_shape(args.w, "linear_forward: w", args.x.dtype, outputs, inputs);
  check_shape(args.y, "linear_forward: y", args.x.dtype, tokens, outputs);
  if (args.activated) check_shape(args.activated, "linear_forward: activated", args.x.dtype, tokens, outputs);
  if (args.addend) check_shape(args.addend, "linear_forward: addend", args.x.dtype, tokens, outputs);
  TRAINER_CHECK(!args.activated || !args.addend, "linear_forward: activated and addend");
  visit_float(args.x.dtype, [&]<class T>(TypeTag<T>) {
    using A = Acc<T>;
    const T* bias = vector_of<T>(args.bias, "linear_forward: bias", outputs);
    for_tiles<T>(outputs, [&](std::int64_t first_out, std::int64_t outs) {
      const Widened<T> w(args.w.row_range(first_out, outs));
      for_tiles<T>(tokens, [&](std::int64_t first, std::int64_t count) {
        const Widened<T> x(args.x.row_range(first, count));
        const auto tile = [&](const Tensor& tensor) {
          return tensor ? tensor.row_range(first, count).col_range(first_out, outs) : Tensor{};
        };
        WidenedOutput<T> y(tile(args.y), /*keep=*/false);
        const bool started = args.addend || bias != nullptr;
        if (started) start_rows<T>(y.matrix(), tile(args.addend), bias != nullptr ? bias + first_out : nullptr);
        gemm(A{1}, x.matrix(), transpose(w.matrix()), started ? A{1} : A{0}, y.matrix());
        if (args.activated) activate_rows<T>(args.activation, y.matrix(), tile(args.activated));
        y.store();
      });
    });
  });
}

void linear_backward_input(const Context&, const LinearBackwardInputArgs& args) {
  const std::int64_t tokens = args.dy.rows, outputs = args.dy.cols, inputs = args.w.cols;
  check_shape(args.w, "linear_backward_input: w", args.dy.dtype, outputs, inputs);
  check_shape(args.dx, "linear_backward_input: dx", args.dy.dtype, tokens, inputs);
  if (args.activation_input)
    check_shape(args.activation_input, "linear_backward_input: activation_input", args.dy.dtype, tokens, inputs);
  TRAINER_CHECK(!args.activation_input || !args.accumulate, "linear_backward_input: activation_input and accumulate");
  visit_float(args.dy.dtype, [&]<class T>(TypeTag<T>) {
    using A = Acc<T>;
    for_tiles<T>(inputs, [&](std::int64_t first_in, std::int64_t ins) {
      const Widened<T> w(args.w.col_range(first_in, ins));
      for_tiles<T>(tokens, [&](std::int64_t first, std::int64_t count) {
        const Widened<T> dy(args.dy.row_range(first, count));
        WidenedOutput<T> dx(args.dx.row_range(first, count).col_range(first_in, ins), args.accumulate);
        gemm(A{1}, dy.matrix(), w.matrix(), args.accumulate ? A{1} : A{0}, dx.matrix());
        if (args.activation_input)
          multiply_by_derivative<T>(
              args.activation, args.activation_input.row_range(first, count).col_range(first_in, ins), dx.matrix());
        dx.store();
      });
    });
  });
}

void linear_backward_weight(const Context& ctx, const LinearBackwardWeightArgs& args) {
  const std::int64_t tokens = args.dy.rows, outputs = args.dy.cols, inputs = args.x.cols;
  check_shape(args.x, "linear_backward_weight: x", args.dy.dtype, tokens, inputs);
  check_shape(args.dw, "linear_backward_weight: dw", args.dw.dtype, outputs, inputs);
  check_weight_gradient(args.dy.dtype, args.dw.dtype, args.accumulate);
  visit_float(args.dy.dtype, [&]<class T>(TypeTag<T>) {
    using A = Acc<T>;
    const auto products = [&]<class Out>(TypeTag<Out>) {
      WidenedOutput<Out> dw(args.dw, args.accumulate);
      for_tiles<T>(tokens, [&](std::int64_t first, std::int64_t count) {
        const Widened<T> dy(args.dy.row_range(first, count));
        const Widened<T> x(args.x.row_range(first, count));
        const bool keep = args.accumulate || first > 0;
        gemm(A{1}, transpose(dy.matrix()), x.matrix(), keep ? A{1} : A{0}, dw.matrix());
      });
      dw.store();
    };
    if (args.dw.dtype == args.dy.dtype)
      products(TypeTag<T>{});
    else
      products(TypeTag<A>{});
  });
  if (args.dbias) cpu::bias_backward(ctx, {.dy = args.dy, .dbias = args.dbias, .accumulate = args.accumulate});
}

}  // namespace trainer::ops::cpu
