// The middle of some values.
#pragma once
#include <algorithm>
#include <cstddef>
#include <vector>

namespace trainer {

/// Of values in any order, at least one; the larger of the two in the middle when their number is even.
inline double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace trainer
