// The decision of a step and the update rules, element by element: the same source for the CPU and for CUDA (C++17), so
// that both mean the same. The optimizer's CUDA kernels are compiled without fused multiply-add, as the CPU bodies are,
// and give the same bits.
#pragma once
#include <cfloat>
#include <cmath>

#include "core/runtime/rng.h"
#include "kernels/ops.h"

namespace trainer::ops {

/// PyTorch's GradScaler.update(), with Megatron's hysteresis (only the growth of the scale refills it) and a floor.
TRAINER_HOST_DEVICE inline void update_loss_scale(UpdateState& state, const LossScaleConfig& config, bool finite) {
  constexpr double kLargest = FLT_MAX;  // logits' gradients are made in float32
  if (!finite) {
    state.scale_at_floor = state.loss_scale <= config.min_scale ? 1 : 0;
    state.growth_tracker = 0;
    state.hysteresis_left = state.hysteresis_left > 0 ? state.hysteresis_left - 1 : 0;
    if (state.hysteresis_left == 0) {
      const double smaller = state.loss_scale * config.backoff_factor;
      state.loss_scale = smaller > config.min_scale ? smaller : config.min_scale;
    }
    return;
  }
  if (++state.growth_tracker < config.growth_interval) return;
  const double grown = state.loss_scale * config.growth_factor;
  if (grown <= kLargest) state.loss_scale = grown;
  state.growth_tracker = 0;
  state.hysteresis_left = config.hysteresis;
}

/// The stored gradient is that of loss_scale x grad_scale x (sum of token losses); the true one that of (sum of token
/// losses) / target_tokens. Clipping as torch.nn.utils.clip_grad_norm_: x clip / (norm + 1e-6) when below 1.
///
/// A step is skipped, with every precision, when a gradient (or, in float64, the sum of squares itself) is not finite;
/// the scaler, where there is one, then backs off. It is also skipped when the batch has no target token: there is
/// nothing to learn and no mean loss, so weights and moments do not decay either, and the scaler learns nothing about
/// its scale. Both count as consecutive skips, so a run that does nothing cannot go on for ever.
TRAINER_HOST_DEVICE inline void decide_update(const PrepareUpdateArgs& args, const double* norm, const double* sums,
                                              UpdateState& state) {
  constexpr double kClipEps = 1e-6;
  constexpr double kInfinity = INFINITY;
  state.loss_sum = sums[0];
  state.z_loss_sum = sums[1];
  state.target_tokens = sums[2];
  state.first_bad = norm[1] == kInfinity ? kNoBadTensor : static_cast<std::int64_t>(norm[1]);
  state.scale_at_floor = 0;

  const bool has_targets = state.target_tokens > 0.0;
  const double unscale = has_targets ? 1.0 / (state.loss_scale * args.grad_scale * state.target_tokens) : 0.0;
  state.grad_norm = sqrt(norm[0]) * unscale;
  const bool finite = state.first_bad == kNoBadTensor && norm[0] < kInfinity;  // NaN is not below
  const bool apply = finite && has_targets;
  if (args.scaling && (has_targets || !finite)) update_loss_scale(state, args.scale, finite);

  state.skipped = apply ? 0 : 1;
  state.consecutive_skips = apply ? 0 : state.consecutive_skips + 1;
  state.updates += apply ? 1 : 0;
  state.grad_factor = apply ? unscale : 0.0;
  if (apply && args.clip_grad_norm > 0.0) {
    const double clip = args.clip_grad_norm / (state.grad_norm + kClipEps);
    if (clip < 1.0) state.grad_factor *= clip;
  }
}

/// base^exponent by squaring: a few multiplications, with the same bits on the host and on the device, unlike pow. For
/// 0 <= base <= 1 the absolute error stays near the rounding of 1.
TRAINER_HOST_DEVICE inline double power(double base, std::int64_t exponent) {
  double result = 1.0;
  for (; exponent > 0; exponent >>= 1) {
    if ((exponent & 1) != 0) result *= base;
    base *= base;
  }
  return result;
}

template <class Math>
struct Updated {
  Math weight, m, v;
};

/// The scalars of one AdamW update, in the type of the rule, and the rule; of(run) is the rule of a run. t =
/// state.updates counts this update.
template <class Math>
struct AdamWRule {
  Math grad_factor;
  Math one_minus_beta1;
  Math beta2, one_minus_beta2;
  Math step_size;         // lr / (1 - beta1^t)
  Math rsqrt_correction;  // 1 / sqrt(1 - beta2^t)
  Math eps;
  double lr;
  Math decay;  // lr * weight_decay, of the run

  AdamWRule() = default;
  TRAINER_HOST_DEVICE AdamWRule(const AdamWArgs& args, const UpdateState& state)
      : grad_factor(static_cast<Math>(state.grad_factor)),
        one_minus_beta1(static_cast<Math>(1.0 - args.beta1)),
        beta2(static_cast<Math>(args.beta2)),
        one_minus_beta2(static_cast<Math>(1.0 - args.beta2)),
        step_size(static_cast<Math>(args.lr / correction(args.beta1, state.updates))),
        rsqrt_correction(static_cast<Math>(1.0 / sqrt(correction(args.beta2, state.updates)))),
        eps(static_cast<Math>(args.eps)),
        lr(args.lr),
        decay(Math(0)) {}
  TRAINER_HOST_DEVICE AdamWRule of(const UpdateRun& run) const {
    AdamWRule rule = *this;
    rule.decay = static_cast<Math>(lr * run.weight_decay);
    return rule;
  }

  TRAINER_HOST_DEVICE static double correction(double beta, std::int64_t t) { return 1.0 - power(beta, t); }

  TRAINER_HOST_DEVICE Updated<Math> operator()(Math weight, Math grad, Math m, Math v) const {
    const Math g = grad * grad_factor;
    const Math m_new = m + one_minus_beta1 * (g - m);
    const Math v_new = beta2 * v + one_minus_beta2 * (g * g);
    const Math denominator = std::sqrt(v_new) * rsqrt_correction + eps;
    // One rounding into w: 1 - lr * weight_decay as a float32 factor would decay by the wrong amount, every step alike.
    return {weight - (decay * weight + step_size * (m_new / denominator)), m_new, v_new};
  }
};

/// SGD with momentum, as torch.optim.SGD.
template <class Math>
struct SgdRule {
  Math grad_factor, lr, momentum, weight_decay;
  bool nesterov;

  SgdRule() = default;
  TRAINER_HOST_DEVICE SgdRule(const SgdArgs& args, const UpdateState& state)
      : grad_factor(static_cast<Math>(state.grad_factor)),
        lr(static_cast<Math>(args.lr)),
        momentum(static_cast<Math>(args.momentum)),
        weight_decay(Math(0)),
        nesterov(args.nesterov) {}
  TRAINER_HOST_DEVICE SgdRule of(const UpdateRun& run) const {
    SgdRule rule = *this;
    rule.weight_decay = static_cast<Math>(run.weight_decay);
    return rule;
  }

  TRAINER_HOST_DEVICE Updated<Math> operator()(Math weight, Math grad, Math m, Math /*v*/) const {
    const Math g = grad * grad_factor + weight_decay * weight;
    const Math m_new = momentum * m + g;
    return {weight - lr * (nesterov ? g + momentum * m_new : m_new), m_new, Math(0)};
  }
};

}  // namespace trainer::ops
