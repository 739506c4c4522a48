// What decides a step: the norm of the gradient, whether it is finite, and what that means for this step and for the
// loss scale.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "kernels/cpu/optimizer_common.h"

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
void add_squared_norm(const SquaredNormArgs& args) {
  const T* x = args.x.as<T>();
  const std::int64_t n = args.x.numel();
  auto* result = args.result.as<double>();
  const double sum = sum_of_squares(x, n);
  // A non-finite element always makes the sum non-finite; a sum of large float64 values may also overflow by itself.
  if (!std::isfinite(sum) && !std::all_of(x, x + n, [](T value) { return std::isfinite(value); }))
    result[1] = std::min(result[1], static_cast<double>(args.tensor_index));
  if (args.counted) result[0] += sum;
}

/// PyTorch's GradScaler.update(), with Megatron's hysteresis (only the growth of the scale refills it) and a floor.
void update_loss_scale(UpdateState& state, const LossScaleConfig& config, bool finite) {
  if (!finite) {
    state.scale_at_floor = state.loss_scale <= config.min_scale ? 1 : 0;
    state.growth_tracker = 0;
    state.hysteresis_left = std::max<std::int64_t>(state.hysteresis_left - 1, 0);
    if (state.hysteresis_left == 0)
      state.loss_scale = std::max(state.loss_scale * config.backoff_factor, config.min_scale);
    return;
  }
  if (++state.growth_tracker < config.growth_interval) return;
  const double grown = state.loss_scale * config.growth_factor;
  if (grown <= std::numeric_limits<float>::max()) state.loss_scale = grown;  // logits' gradients are made in float32
  state.growth_tracker = 0;
  state.hysteresis_left = config.hysteresis;
}

}  // namespace

void squared_norm(const Context& /*ctx*/, const SquaredNormArgs& args) {
  if (args.x.dtype == Dtype::f64)
    add_squared_norm<double>(args);
  else
    add_squared_norm<float>(args);
}

/// The stored gradient is that of loss_scale x grad_scale x (sum of token losses); the true one that of (sum of token
/// losses) / target_tokens. Clipping as torch.nn.utils.clip_grad_norm_: x clip / (norm + 1e-6) when below 1.
///
/// A step is skipped, with every precision, when a gradient (or, in float64, the sum of squares itself) is not finite;
/// the scaler, where there is one, then backs off. It is also skipped when the batch has no target token: there is
/// nothing to learn and no mean loss, so weights and moments do not decay either, and the scaler learns nothing about
/// its scale. Both count as consecutive skips, so a run that does nothing cannot go on for ever.
void prepare_update(const Context& /*ctx*/, const PrepareUpdateArgs& args) {
  constexpr double kClipEps = 1e-6;
  const auto* norm = args.norm.as<double>();
  const auto* sums = args.sums.as<double>();
  UpdateState& state = *args.state;
  state.loss_sum = sums[0];
  state.z_loss_sum = sums[1];
  state.target_tokens = sums[2];
  state.first_bad = std::isinf(norm[1]) ? kNoBadTensor : static_cast<std::int64_t>(norm[1]);
  state.scale_at_floor = 0;

  const bool has_targets = state.target_tokens > 0.0;
  const double unscale = has_targets ? 1.0 / (state.loss_scale * args.grad_scale * state.target_tokens) : 0.0;
  state.grad_norm = std::sqrt(norm[0]) * unscale;
  const bool finite = state.first_bad == kNoBadTensor && std::isfinite(norm[0]);
  const bool apply = finite && has_targets;
  if (args.scaling && (has_targets || !finite)) update_loss_scale(state, args.scale, finite);

  state.skipped = apply ? 0 : 1;
  state.consecutive_skips = apply ? 0 : state.consecutive_skips + 1;
  state.updates += apply ? 1 : 0;
  state.grad_factor = apply ? unscale : 0.0;
  if (apply && args.clip_grad_norm > 0.0)
    state.grad_factor *= std::min(1.0, args.clip_grad_norm / (state.grad_norm + kClipEps));
}

}  // namespace trainer::ops::cpu
