#include <cmath>

#include "kernels/cpu/optimizer_common.h"

namespace trainer::ops::cpu {
namespace {

/// The scalars of one AdamW update, in the type of the rule. t = state->updates counts this update.
template <class Math>
struct AdamWScalars {
  Math grad_factor;
  Math one_minus_beta1;
  Math beta2, one_minus_beta2;
  Math step_size;         // lr / (1 - beta1^t)
  Math rsqrt_correction;  // 1 / sqrt(1 - beta2^t)
  Math eps;
  Math decay;  // lr * weight_decay

  explicit AdamWScalars(const AdamWArgs& args)
      : grad_factor(static_cast<Math>(args.state->grad_factor)),
        one_minus_beta1(static_cast<Math>(1.0 - args.beta1)),
        beta2(static_cast<Math>(args.beta2)),
        one_minus_beta2(static_cast<Math>(1.0 - args.beta2)),
        step_size(static_cast<Math>(args.lr / correction(args.beta1, args.state->updates))),
        rsqrt_correction(static_cast<Math>(1.0 / std::sqrt(correction(args.beta2, args.state->updates)))),
        eps(static_cast<Math>(args.eps)),
        decay(static_cast<Math>(args.lr * args.weight_decay)) {}

  static double correction(double beta, std::int64_t t) { return 1.0 - std::pow(beta, static_cast<double>(t)); }
};

template <class Master, class Moment>
void adamw_elements(const AdamWArgs& args, Master master, Moment m, Moment v) {
  using Math = typename Master::Math;
  const AdamWScalars<Math> k(args);
  const Math* grad = args.shard.grad.as<Math>();
  const std::int64_t n = args.shard.weight.numel();
  const std::uint64_t stream = rounding_stream(args.rounding_key, args.state->updates);
  parallel_for(n, 1, [&](std::int64_t i) {
    const Math g = grad[i] * k.grad_factor;
    const Math m_old = m.template load<Math>(i);
    const Math m_new = m_old + k.one_minus_beta1 * (g - m_old);
    const Math v_new = k.beta2 * v.template load<Math>(i) + k.one_minus_beta2 * (g * g);
    const Math denominator = std::sqrt(v_new) * k.rsqrt_correction + k.eps;
    // One rounding into w: 1 - lr * weight_decay as a float32 factor would decay by the wrong amount, every step alike.
    const Math w = master.load(i);
    master.store(i, w - (k.decay * w + k.step_size * (m_new / denominator)));
    std::uint32_t noise = 0;
    if constexpr (Moment::kStochastic) noise = rounding_noise(stream, args.first_index + i);
    m.store(i, m_new, noise & 0xffffu);
    v.store(i, v_new, noise >> 16);
  });
}

}  // namespace

void adamw(const Context& /*ctx*/, const AdamWArgs& args) {
  if (args.state->skipped != 0) return;
  const ShardTensors& shard = args.shard;
  const std::int64_t n = shard.weight.numel();
  TRAINER_CHECK(shard.grad.numel() == n && shard.m.numel() == n && shard.v.numel() == n,
                "{} weights, {} gradients, {} and {} moments", n, shard.grad.numel(), shard.m.numel(), shard.v.numel());
  TRAINER_CHECK(args.state->updates > 0, "prepare_update counts an update before it is applied");
  visit_master(shard, [&](auto master) {
    visit_moment(shard.m.dtype, [&](auto moment) {
      using Moment = typename decltype(moment)::type;
      adamw_elements(args, master, Moment(shard.m), Moment(shard.v));
    });
  });
}

}  // namespace trainer::ops::cpu
