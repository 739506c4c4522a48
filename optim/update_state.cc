#include "optim/update_state.h"

#include <string>

#include "core/runtime/check.h"
#include "core/runtime/counted.h"

namespace trainer {
UpdateState initial_update_state(const PrecisionConfig& precision) {
  UpdateState state;
  if (uses_loss_scaling(precision)) {
    state.loss_scale = precision.loss_scale.init_scale;
    state.hysteresis_left = precision.loss_scale.hysteresis;
  }
  state.first_bad = kNoBadTensor;
  return state;
}

std::string why_skipped(const UpdateState& state, const ParamLayout& layout) {
  if (state.first_bad != kNoBadTensor)
    return fmt::format("the gradient of {} is not finite (the first such tensor)",
                       layout.decl(static_cast<ParamId>(state.first_bad)).name);
  if (state.target_tokens <= 0.0) return "the batch has no target token: every target is masked";
  return "the sum of squares of the gradients is not finite";
}

void check_divergence(const Config& config, const UpdateState& state, const ParamLayout& layout) {
  if (state.scale_at_floor != 0)
    fail(ExitCode::diverged,
         "{} and the loss scale {} is at its floor (precision.loss_scale.min_scale {}); lower optimizer.lr or "
         "lengthen lr_scheduler.warmup_steps, and go on from an earlier checkpoint",
         why_skipped(state, layout), state.loss_scale, config.precision.loss_scale.min_scale);
  if (state.consecutive_skips >= config.precision.max_consecutive_skips)
    fail(ExitCode::diverged,
         "{}; {} in a row skipped (precision.max_consecutive_skips {}), loss scale {}; lower "
         "optimizer.lr or look at the data of these steps, and go on from an earlier checkpoint",
         why_skipped(state, layout), counted(state.consecutive_skips, "step"), config.precision.max_consecutive_skips,
         state.loss_scale);
}

}  // namespace trainer
