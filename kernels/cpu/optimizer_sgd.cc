#include "kernels/cpu/optimizer_common.h"
#include "kernels/update_rule.h"

namespace trainer::ops::cpu {
namespace {

template <class Master, class Moment>
void sgd_elements(const SgdArgs& args, Master master, Moment m) {
  using Math = typename Master::Math;
  const SgdRule<Math> rule_of_all(args, *args.state);
  const Math* grad = args.shard.grad.as<Math>();
  for (const UpdateRun& run : args.runs) {
    const SgdRule<Math> rule = rule_of_all.of(run);
    const std::uint64_t stream = rounding_stream(run.rounding_key, args.state->updates);
    parallel_for(run.count, 1, [&](std::int64_t at) {
      const std::int64_t i = run.first + at;
      const Updated<Math> updated = rule(master.load(i), grad[i], m.template load<Math>(i), Math(0));
      master.store(i, updated.weight);
      std::uint32_t noise = 0;
      if constexpr (Moment::kStochastic) noise = rounding_noise(stream, global_index(run, at));
      m.store(i, updated.m, noise & 0xffffu);
    });
  }
}

}  // namespace

void sgd(const Context& /*ctx*/, const SgdArgs& args) {
  if (args.state->skipped != 0) return;
  const ShardTensors& shard = args.shard;
  const std::int64_t n = shard.weight.numel();
  TRAINER_CHECK(shard.grad.numel() == n, "{} weights, {} gradients", n, shard.grad.numel());
  TRAINER_CHECK(shard.m ? shard.m.numel() == n : args.momentum == 0.0, "{} weights, {} moments, momentum {}", n,
                shard.m.numel(), args.momentum);
  visit_master(shard, [&](auto master) {
    if (!shard.m) return sgd_elements(args, master, NoMoment(shard.m));
    visit_moment(shard.m.dtype, [&](auto moment) {
      using Moment = typename decltype(moment)::type;
      sgd_elements(args, master, Moment(shard.m));
    });
  });
}

}  // namespace trainer::ops::cpu
