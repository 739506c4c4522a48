// GELU, its tanh approximation, and SwiGLU. With 16-bit elements these kernels would be bound by arithmetic if they
// used the accurate functions; the fast ones err by less than 1e-6, far below the rounding of the result.
#include "kernels/cuda/elementwise.cuh"

namespace trainer::ops::cuda {
namespace {

/// T = float: accurate functions.
template <class T>
struct Math {
  static constexpr bool kFast = sizeof(T) == 2;
  __device__ static float exponential(float x) { return kFast ? __expf(x) : expf(x); }
  __device__ static float reciprocal(float x) { return kFast ? __fdividef(1.0f, x) : 1.0f / x; }
  __device__ static float sigmoid(float x) {
    // __fdividef gives 0 / 0 beyond 2^126; there the sigmoid is 0.
    return kFast ? __fdividef(1.0f, 1.0f + __expf(fminf(-x, 87.0f))) : 1.0f / (1.0f + expf(-x));
  }
};

/// x Phi(x), Phi the normal distribution (Hendrycks and Gimpel 2016).
template <class T>
struct Gelu {
  static constexpr float kInvSqrt2 = 0.70710678118654752f;
  static constexpr float kDensityAtZero = 0.39894228040143268f;  // 1 / sqrt(2 pi)

  /// Phi(x), and exp(-x^2 / 2), which its fast form makes on the way. erfc(z), z >= 0, as a polynomial in 1 / (1 + p z)
  /// times exp(-z^2): Abramowitz and Stegun 7.1.26, absolute error 1.5e-7.
  __device__ static float phi(float x, float& bell) {
    bell = Math<T>::exponential(-0.5f * x * x);
    if constexpr (!Math<T>::kFast) {
      return 0.5f * erfcf(-x * kInvSqrt2);
    } else {
      const float t = Math<T>::reciprocal(1.0f + 0.3275911f * kInvSqrt2 * fabsf(x));
      const float polynomial =
          t * (0.254829592f + t * (-0.284496736f + t * (1.421413741f + t * (-1.453152027f + t * 1.061405429f))));
      const float tail = 0.5f * polynomial * bell;
      return x < 0 ? tail : 1.0f - tail;
    }
  }
  __device__ static float value(float x) {
    float bell;
    return x * phi(x, bell);
  }
  __device__ static float derivative(float x) {
    float bell;
    const float p = phi(x, bell);
    return p + x * kDensityAtZero * bell;
  }
};

/// 0.5 x (1 + tanh u), u = sqrt(2 / pi) (x + 0.044715 x^3), written with 0.5 (1 + tanh u) = sigmoid(2 u).
template <class T>
struct GeluTanh {
  static constexpr float kTwiceSlope = 1.5957691216057308f;  // 2 sqrt(2 / pi)
  static constexpr float kCubic = 0.044715f;
  __device__ static float gate(float x) { return Math<T>::sigmoid(kTwiceSlope * (x + kCubic * x * x * x)); }
  __device__ static float value(float x) { return x * gate(x); }
  __device__ static float derivative(float x) {
    const float s = gate(x);
    return s + x * s * (1.0f - s) * kTwiceSlope * (1.0f + 3.0f * kCubic * x * x);
  }
};

template <class T, class Function>
struct Forward {
  View<T> x, out;
  template <int N>
  using Loaded = Packed<T, N>;
  template <int N>
  __device__ Loaded<N> load(int64_t row, int64_t col) const {
    return Loaded<N>::load(x.at(row, col));
  }
  template <int N>
  __device__ void store(int64_t row, int64_t col, const Loaded<N>& loaded) const {
    float values[N];
    loaded.unpack(values);
#pragma unroll
    for (int i = 0; i < N; ++i) values[i] = Function::value(values[i]);
    store_vector<N>(out.at(row, col), values);
  }
};

template <class T, class Function>
struct Backward {
  View<T> x, dout, dx;
  template <int N>
  struct Loaded {
    Packed<T, N> x, dout;
  };
  template <int N>
  __device__ Loaded<N> load(int64_t row, int64_t col) const {
    return {Packed<T, N>::load(x.at(row, col)), Packed<T, N>::load(dout.at(row, col))};
  }
  template <int N>
  __device__ void store(int64_t row, int64_t col, const Loaded<N>& loaded) const {
    float values[N], d[N];
    loaded.x.unpack(values);
    loaded.dout.unpack(d);
#pragma unroll
    for (int i = 0; i < N; ++i) d[i] *= Function::derivative(values[i]);
    store_vector<N>(dx.at(row, col), d);
  }
};

/// x holds gate [N, F] and up [N, F] side by side; the loop runs over [N, F].
template <class T>
struct SwigluForward {
  View<T> x, out;
  int64_t width;
  template <int N>
  struct Loaded {
    Packed<T, N> gate, up;
  };
  template <int N>
  __device__ Loaded<N> load(int64_t row, int64_t col) const {
    return {Packed<T, N>::load(x.at(row, col)), Packed<T, N>::load(x.at(row, width + col))};
  }
  template <int N>
  __device__ void store(int64_t row, int64_t col, const Loaded<N>& loaded) const {
    float gate[N], up[N];
    loaded.gate.unpack(gate);
    loaded.up.unpack(up);
#pragma unroll
    for (int i = 0; i < N; ++i) gate[i] *= Math<T>::sigmoid(gate[i]) * up[i];
    store_vector<N>(out.at(row, col), gate);
  }
};

template <class T>
struct SwigluBackward {
  View<T> x, dout, dx;
  int64_t width;
  template <int N>
  struct Loaded {
    Packed<T, N> gate, up, dout;
  };
  template <int N>
  __device__ Loaded<N> load(int64_t row, int64_t col) const {
    return {Packed<T, N>::load(x.at(row, col)), Packed<T, N>::load(x.at(row, width + col)),
            Packed<T, N>::load(dout.at(row, col))};
  }
  template <int N>
  __device__ void store(int64_t row, int64_t col, const Loaded<N>& loaded) const {
    float gate[N], up[N], d[N];
    loaded.gate.unpack(gate);
    loaded.up.unpack(up);
    loaded.dout.unpack(d);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float g = gate[i], s = Math<T>::sigmoid(g);
      gate[i] = d[i] * up[i] * s * (1.0f + g * (1.0f - s));
      up[i] = d[i] * g * s;
    }
    store_vector<N>(dx.at(row, col), gate);
    store_vector<N>(dx.at(row, width + col), up);
  }
};

/// The two halves of a row are vectors of their own.
template <class T>
bool halves_aligned(int64_t width) {
  return width % kVector<T> == 0;
}

template <class T, class Function>
void forward(const Context& ctx, const ActivationForwardArgs& args) {
  const LoopShape shape = loop_shape(args.x, args.out);
  launch_elementwise<kVector<T>, 2>(ctx, Forward<T, Function>{view_of<T>(args.x), view_of<T>(args.out)}, shape.rows,
                                    shape.cols, all_aligned16(args.x, args.out), "activation_forward");
}

template <class T, class Function>
void backward(const Context& ctx, const ActivationBackwardArgs& args) {
  const LoopShape shape = loop_shape(args.x, args.dout, args.dx);
  const Backward<T, Function> body{view_of<T>(args.x), view_of<T>(args.dout), view_of<T>(args.dx)};
  launch_elementwise<kVector<T>, 2>(ctx, body, shape.rows, shape.cols, all_aligned16(args.x, args.dout, args.dx),
                                    "activation_backward");
}

}  // namespace

void activation_forward(const Context& ctx, const ActivationForwardArgs& args) {
  const int64_t factor = args.kind == Activation::swiglu ? 2 : 1, width = args.out.cols;
  check_shape(args.x, "activation_forward: x", args.out.dtype, args.out.rows, factor * width);
  visit_float(args.x.dtype, "activation_forward", [&](auto tag) {
    using T = typename decltype(tag)::type;
    switch (args.kind) {
      case Activation::gelu:
        return forward<T, Gelu<T>>(ctx, args);
      case Activation::gelu_tanh:
        return forward<T, GeluTanh<T>>(ctx, args);
      case Activation::swiglu:
        return launch_elementwise<kVector<T>, 2>(
            ctx, SwigluForward<T>{view_of<T>(args.x), view_of<T>(args.out), width}, args.out.rows, width,
            all_aligned16(args.x, args.out) && halves_aligned<T>(width), "activation_forward");
    }
  });
}

void activation_backward(const Context& ctx, const ActivationBackwardArgs& args) {
  const int64_t factor = args.kind == Activation::swiglu ? 2 : 1, width = args.dout.cols;
  check_shape(args.x, "activation_backward: x", args.dout.dtype, args.dout.rows, factor * width);
  check_shape(args.dx, "activation_backward: dx", args.x.dtype, args.x.rows, args.x.cols);
  visit_float(args.x.dtype, "activation_backward", [&](auto tag) {
    using T = typename decltype(tag)::type;
    switch (args.kind) {
      case Activation::gelu:
        return backward<T, Gelu<T>>(ctx, args);
      case Activation::gelu_tanh:
        return backward<T, GeluTanh<T>>(ctx, args);
      case Activation::swiglu:
        return launch_elementwise<kVector<T>, 1>(
            ctx, SwigluBackward<T>{view_of<T>(args.x), view_of<T>(args.dout), view_of<T>(args.dx), width},
            args.dout.rows, width, all_aligned16(args.x, args.dout, args.dx) && halves_aligned<T>(width),
            "activation_backward");
    }
  });
}

}  // namespace trainer::ops::cuda
