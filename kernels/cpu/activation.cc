// GELU, its tanh approximation, and SwiGLU.
#include "kernels/cpu/activation.h"

#include "kernels/cpu/common.h"

namespace trainer::ops::cpu {
namespace {

template <class Function>
void forward(const ActivationForwardArgs& args) {
  visit_float(args.x.dtype, [&]<class T>(TypeTag<T>) {
    const Rows<T> x = rows_of<T>(args.x), out = rows_of<T>(args.out);
    parallel_for(args.x.rows, 8 * args.x.cols, [&](std::int64_t n) {
      for (std::int64_t c = 0; c < args.x.cols; ++c) out[n][c] = narrow<T>(Function::value(widen(x[n][c])));
    });
  });
}

template <class Function>
void backward(const ActivationBackwardArgs& args) {
  visit_float(args.x.dtype, [&]<class T>(TypeTag<T>) {
    const Rows<T> x = rows_of<T>(args.x), dout = rows_of<T>(args.dout), dx = rows_of<T>(args.dx);
    parallel_for(args.x.rows, 8 * args.x.cols, [&](std::int64_t n) {
      for (std::int64_t c = 0; c < args.x.cols; ++c)
        dx[n][c] = narrow<T>(widen(dout[n][c]) * Function::derivative(widen(x[n][c])));
    });
  });
}

void swiglu_forward(const ActivationForwardArgs& args) {
  const std::int64_t width = args.out.cols;
  visit_float(args.x.dtype, [&]<class T>(TypeTag<T>) {
    const Rows<T> x = rows_of<T>(args.x), out = rows_of<T>(args.out);
    parallel_for(args.x.rows, 8 * width, [&](std::int64_t n) {
      for (std::int64_t c = 0; c < width; ++c) {
        const Acc<T> gate = widen(x[n][c]), up = widen(x[n][width + c]);
        out[n][c] = narrow<T>(gate * sigmoid(gate) * up);
      }
    });
  });
}

void swiglu_backward(const ActivationBackwardArgs& args) {
  const std::int64_t width = args.dout.cols;
  visit_float(args.x.dtype, [&]<class T>(TypeTag<T>) {
    using A = Acc<T>;
    const Rows<T> x = rows_of<T>(args.x), dout = rows_of<T>(args.dout), dx = rows_of<T>(args.dx);
    parallel_for(args.x.rows, 8 * width, [&](std::int64_t n) {
      for (std::int64_t c = 0; c < width; ++c) {
        const A gate = widen(x[n][c]), up = widen(x[n][width + c]), d = widen(dout[n][c]);
        const A s = sigmoid(gate);
        dx[n][c] = narrow<T>(d * up * s * (A{1} + gate * (A{1} - s)));
        dx[n][width + c] = narrow<T>(d * gate * s);
      }
    });
  });
}

}  // namespace

void activation_forward(const Context&, const ActivationForwardArgs& args) {
  const std::int64_t factor = args.kind == Activation::swiglu ? 2 : 1;
  check_shape(args.x, "activation_forward: x", args.out.dtype, args.out.rows, factor * args.out.cols);
  if (args.kind == Activation::swiglu) return swiglu_forward(args);
  visit_gelu(args.kind, [&]<class Function>(Function) { forward<Function>(args); });
}

void activation_backward(const Context&, const ActivationBackwardArgs& args) {
  const std::int64_t factor = args.kind == Activation::swiglu ? 2 : 1;
  check_shape(args.x, "activation_backward: x", args.dout.dtype, args.dout.rows, factor * args.dout.cols);
  check_shape(args.dx, "activation_backward: dx", args.x.dtype, args.x.rows, args.x.cols);
  if (args.kind == Activation::swiglu) return swiglu_backward(args);
  visit_gelu(args.kind, [&]<class Function>(Function) { backward<Function>(args); });
}

}  // namespace trainer::ops::cpu
