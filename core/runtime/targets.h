// What data and kernels agree on about targets.
#pragma once
#include <cstdint>

namespace trainer {

/// A target that takes no part in the loss.
constexpr std::int32_t kIgnoredTarget = -1;

}  // namespace trainer
