// What decides a step: the norm of the gradient, whether it is finite, and what that means for this step and for the
// loss scale.
#include <algorithm>
#include <array>
#include <cmath>

#include "kernels/cpu/common.h"
#include "kernels/update_rule.h"

namespace trainer::ops::cpu {
namespace {

/// Sum of squares in float64. The split into parts depends on n alone, so the bits do not depend on the threads.
template <class T>
double sum_of_squares(const T* x, std::int64_t n) {
  constexpr std::int64_t kParts = 64;
  std::array<double, kParts> parts{};
  parallel_for(kParts, n / kParts, [&](std::int64_t p) {
    double sum = 0.0;
    for (std::int64_t i = n * p / kParts; i < n * (p + 1) / kParts; ++i) {
      const auto value = static_cast<double>(x[i]);
      sum += value * value;
    }
    parts[static_cast<std::size_t>(p)] = sum;
  });
  double total = 0.0;
  for (const double part : parts) total += part;
  return total;
}

template <class T>
void add_squared_norm(const NormRun& run, const T* x, double* result) {
  const double sum = sum_of_squares(x, run.count);
  // A non-finite element always makes the sum non-finite; a sum of large float64 values may also overflow by itself.
  if (!std::isfinite(sum) && !std::all_of(x, x + run.count, [](T value) { return std::isfinite(value); }))
    result[1] = std::min(result[1], static_cast<double>(run.tensor_index));
  if (run.counted) result[0] += sum;
}

}  // namespace

void squared_norm(const Context& /*ctx*/, const SquaredNormArgs& args) {
  auto* result = args.result.as<double>();
  for (const NormRun& run : args.runs) {
    const Tensor x = args.x.flat_range(run.first, run.count);
    if (x.dtype == Dtype::f64)
      add_squared_norm(run, x.as<double>(), result);
    else
      add_squared_norm(run, x.as<float>(), result);
  }
}

void prepare_update(const Context& /*ctx*/, const PrepareUpdateArgs& args) {
  decide_update(args, args.norm.as<double>(), args.sums.as<double>(), *args.state);
}

}  // namespace trainer::ops::cpu
