// The functions behind the activation ops, of one element.
#pragma once
#include <cmath>
#include <numbers>

#include "core/config/config.h"
#include "core/runtime/check.h"

namespace trainer::ops::cpu {

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

/// body(Gelu{}) or body(GeluTanh{}).
template <class Body>
void visit_gelu(Activation kind, const Body& body) {
  TRAINER_CHECK(kind != Activation::swiglu, "SwiGLU is not a function of one element");
  if (kind == Activation::gelu)
    body(Gelu{});
  else
    body(GeluTanh{});
}

}  // namespace trainer::ops::cpu
