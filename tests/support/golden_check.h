// A whole model on a device against its golden file.
#pragma once
#include <string>

#include "core/runtime/context.h"

namespace trainer::test {

/// Relative, and for gradients also absolute per element: some are zero but for rounding (a key bias without RoPE).
struct GoldenTolerance {
  const char* precision;
  double logits, gradients, gradient_noise, first_loss, losses, weights;
};

/// Logits, every gradient and ten optimizer steps of a family; differences beyond the tolerance are test failures.
void check_golden(const std::string& family, const Context& ctx, const GoldenTolerance& tolerance);

}  // namespace trainer::test
