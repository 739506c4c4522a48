#include "kernels/cpu/optimizer_common.h"
#include "kernels/update_rule.h"

namespace trainer::ops::cpu {
namespace {

template <class Master, class Moment>
void adamw_elements(const AdamWArgs& args, Master master, Moment m, Moment v) {
  using Math = typename Master::Math;
  const AdamWRule<Math> rule_of_all(args, *args.state);
  const Math* grad = args.shard.grad.as<Math>();
  for (const UpdateRun& run : args.runs) {
    const AdamWRule<Math> rule = rule_of_all.of(run);
    const std::uint64_t stream = rounding_stream(run.rounding_key, args.state->updates);
    parallel_for(run.count, 1, [&](std::int64_t at) {
      const std::int64_t i = run.first + at;
      const Updated<Math> updated = rule(master.load(i), grad[i], m.template load<Math>(i), v.template load<Math>(i));
      master.store(i, updated.weight);
      std::uint32_t noise = 0;
      if constexpr (Moment::kStochastic) noise = rounding_noise(stream, global_index(run, at));
      m.store(i, updated.m, noise & 0xffffu);
      v.store(i, updated.v, noise >> 16);
    });
  }
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
