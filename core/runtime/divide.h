// Sizes that are rounded up (C++17: the CUDA sources include this).
#pragma once
#include <cstdint>

namespace trainer {

/// The least integer that is at least a / b, for a >= 0 and b > 0.
constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
  return a / b + (a % b != 0 ? 1 : 0);
}

/// The least multiple of `multiple` that is at least n, for n >= 0.
constexpr std::int64_t round_up(std::int64_t n, std::int64_t multiple) {
  return ceil_div(n, multiple) * multiple;
}

}  // namespace trainer
