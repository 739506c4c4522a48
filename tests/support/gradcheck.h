// Gradients against finite differences in float64. A claimed gradient of a scalar function is compared with the
// fourth-order central difference (8 (f(x + h) - f(x - h)) - (f(x + 2h) - f(x - 2h))) / 12 h, whose error at h = 1e-3
// is about 1e-12 for functions of unit scale, from truncation (h^4) and rounding (1e-16 / h) alike.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "core/runtime/rng.h"

namespace trainer::testing {

struct GradcheckOptions {
  double step = 1e-3;
  double tolerance = 1e-8;           // relative to the element or the root mean square of the gradient, the larger
  std::size_t elementwise = 1000;    // every element of tensors up to this size
  int directions = 4;                // and always this many random directions
  std::uint64_t key = 0x6772616463;  // of the directions
};

/// True when `gradient` is d loss() / d x. `loss` recomputes from x, which is changed and put back.
inline ::testing::AssertionResult gradient_matches(std::span<double> x, std::span<const double> gradient,
                                                   const std::function<double()>& loss,
                                                   const GradcheckOptions& options = {}) {
  if (x.size() != gradient.size() || x.empty())
    return ::testing::AssertionFailure() << x.size() << " elements, gradient of " << gradient.size();
  const std::vector<double> origin(x.begin(), x.end());
  const auto derivative = [&](const std::vector<double>& direction) {
    const auto at = [&](double t) {
      for (std::size_t i = 0; i < x.size(); ++i) x[i] = origin[i] + t * direction[i];
      return loss();
    };
    const double h = options.step;
    const double result = (8 * (at(h) - at(-h)) - (at(2 * h) - at(-2 * h))) / (12 * h);
    std::copy(origin.begin(), origin.end(), x.begin());
    return result;
  };
  double squares = 0;
  for (const double g : gradient) squares += g * g;
  const double rms = std::sqrt(squares / static_cast<double>(x.size()));
  const auto agree = [&](double numeric, double claimed) {
    // Written so that NaN disagrees. The last term is the rounding error of a loss of unit scale.
    return std::abs(numeric - claimed) <= options.tolerance * std::max(std::abs(numeric), rms) + 1e-11;
  };

  std::vector<double> direction(x.size(), 0.0);
  if (x.size() <= options.elementwise) {
    for (std::size_t i = 0; i < x.size(); ++i) {
      direction[i] = 1.0;
      const double numeric = derivative(direction);
      direction[i] = 0.0;
      if (!agree(numeric, gradient[i]))
        return ::testing::AssertionFailure()
               << "element " << i << ": gradient " << gradient[i] << ", difference quotient " << numeric;
    }
  }
  for (int k = 0; k < options.directions; ++k) {
    double claimed = 0, length = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      direction[i] = normal_at(options.key + static_cast<std::uint64_t>(k), i);
      length += direction[i] * direction[i];
    }
    for (std::size_t i = 0; i < x.size(); ++i) {
      direction[i] /= std::sqrt(length);  // unit length, so that the slope is of the size of the gradient
      claimed += direction[i] * gradient[i];
    }
    const double numeric = derivative(direction);
    if (!agree(numeric, claimed))
      return ::testing::AssertionFailure()
             << "direction " << k << ": gradient " << claimed << ", difference quotient " << numeric;
  }
  return ::testing::AssertionSuccess();
}

}  // namespace trainer::testing
