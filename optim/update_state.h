// The scalars of the optimizer step, seen from the host: how they start, and when a run must end because of them.
#pragma once
#include <string>

#include "core/config/config.h"
#include "core/runtime/param.h"
#include "kernels/ops.h"

namespace trainer {

/// Loss scaling is for fp16 alone.
inline bool uses_loss_scaling(const PrecisionConfig& precision) {
  return precision.dtype == Precision::fp16;
}

/// The state before the first step.
UpdateState initial_update_state(const PrecisionConfig& precision);

/// Why a step was skipped, for people: the first gradient that is not finite, by name, or what else was wrong.
std::string why_skipped(const UpdateState& state, const ParamLayout& layout);

/// `state` as a step left it. Throws Error(diverged) when that step had a non-finite gradient with the loss scale at
/// its floor, or was the max_consecutive_skips-th in a row that was skipped; the message names the loss scale and the
/// first bad tensor. All ranks hold the same state, so all of them throw.
void check_divergence(const Config& config, const UpdateState& state, const ParamLayout& layout);

}  // namespace trainer
