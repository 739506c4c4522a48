// GELU, its tanh approximation, and SwiGLU.
#include <cmath>
#include <numbers>

#include "kernels/cpu/common.h"

namespace trainer::ops::cpu {
namespace {

template <class A>
constexpr A kInvSqrt2 = std::numbers::sqrt2_v<A> / 2;

template <class A>
A sigmoid(A x) {
  return A{1} / (A{1} + std::exp(-x));
}

/// x Phi(x), Phi the normal distribution (Hendrycks and Gimpel 2016). erfc keeps the digits of the negative tail.
struct Gelu {
  template <class A>
  static A phi(A x) {
    return A{0.5} * std::erfc(-x * kInvSqrt2<A>);
  }
  template <class A>
  static A value(A x) {
    return x * phi(x);
  }
  template <class A>
  static A derivative(A x) {
    constexpr A kDensityAtZero = std::numbers::inv_sqrtpi_v<A> * kInvSqrt2<A>;
    return phi(x) + x * kDensityAtZero * std::exp(A{-0.5} * x * x);
  }
};

/// 0.5 x (1 + tanh u), u = sqrt(2 / pi) (x + 0.044715 x^3), written with 0.5 (1 + tanh u) = sigmoid(2 u).
struct GeluTanh {
  static constexpr double kTwiceSlope = 2.0 * std::numbers::sqrt2 * std::numbers::inv_sqrtpi;
  static constexpr double kCubic = 0.044715;
  template <class A>
  static A gate(A x) {
    return sigmoid(static_cast<A>(kTwiceSlope) * (x + static_cast<A>(kCubic) * x * x * x));
  }
  template <class A>
  static A value(A x) {
    return x * gate(x);
  }
  template <class A>
  static A derivative(A x) {
    const A s = gate(x);
    const A slope = static_cast<A>(kTwiceSlope) * (A{1} + static_cast<A>(3.0 * kCubic) * x * x);
    return s + x * s * (A{1} - s) * slope;
  }
};

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
  switch (args.kind) {
    case Activation::gelu:
      return forward<Gelu>(args);
    case Activation::gelu_tanh:
      return forward<GeluTanh>(args);
    case Activation::swiglu:
      return swiglu_forward(args);
  }
}

void activation_backward(const Context&, const ActivationBackwardArgs& args) {
  const std::int64_t factor = args.kind == Activation::swiglu ? 2 : 1;
  check_shape(args.x, "activation_backward: x", args.dout.dtype, args.dout.rows, factor * args.dout.cols);
  check_shape(args.dx, "activation_backward: dx", args.x.dtype, args.x.rows, args.x.cols);
  switch (args.kind) {
    case Activation::gelu:
      return backward<Gelu>(args);
    case Activation::gelu_tanh:
      return backward<GeluTanh>(args);
    case Activation::swiglu:
      return swiglu_backward(args);
  }
}

}  // namespace trainer::ops::cpu
