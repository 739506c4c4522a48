// Exact values of parameters, in and out: initial values and checkpoints.
#include "kernels/cpu/optimizer_common.h"

namespace trainer::ops::cpu {
namespace {

/// A bf16 weight outside this rank's shard: rounded as the split form does, low bits kept by another rank.
struct SplitWeightOnly {
  using Math = float;
  Bfloat16* weight;
  void store(std::int64_t i, Math value) const {
    weight[i].bits = bf16_weight_of_master(canonical_master_bits(std::bit_cast<std::uint32_t>(value)));
  }
};

struct CastWeightOnly {
  using Math = float;
  Float16* weight;
  void store(std::int64_t i, Math value) const { weight[i] = Float16(value); }
};

template <class Out, class Master>
void read_elements(Out* out, Master master, std::int64_t n) {
  parallel_for(n, 1, [&](std::int64_t i) { out[i] = static_cast<Out>(master.load(i)); });
}

template <class In, class Master>
void write_elements(const In* in, Master master, std::int64_t n) {
  using Math = typename Master::Math;
  parallel_for(n, 1, [&](std::int64_t i) { master.store(i, static_cast<Math>(in[i])); });
}

template <class Body>
void visit_writable(const ShardTensors& shard, Body&& body) {
  if (shard.weight.dtype == Dtype::bf16 && !shard.low)
    body(SplitWeightOnly{shard.weight.as<Bfloat16>()});
  else if (shard.weight.dtype == Dtype::f16 && !shard.master)
    body(CastWeightOnly{shard.weight.as<Float16>()});
  else
    visit_master(shard, body);
}

}  // namespace

void master_read(const Context& /*ctx*/, const MasterReadArgs& args) {
  const std::int64_t n = args.shard.weight.numel();
  TRAINER_CHECK(args.out.numel() == n, "{} values out of {}", args.out.numel(), n);
  TRAINER_CHECK(args.out.dtype == Dtype::f64 || args.shard.weight.dtype != Dtype::f64,
                "float32 does not hold a float64 parameter exactly");
  visit_master(args.shard, [&](auto master) {
    if (args.out.dtype == Dtype::f64)
      read_elements(args.out.as<double>(), master, n);
    else
      read_elements(args.out.as<float>(), master, n);
  });
}

void master_write(const Context& /*ctx*/, const MasterWriteArgs& args) {
  const std::int64_t n = args.shard.weight.numel();
  TRAINER_CHECK(args.in.numel() == n, "{} values for {}", args.in.numel(), n);
  visit_writable(args.shard, [&](auto master) {
    if (args.in.dtype == Dtype::f64)
      write_elements(args.in.as<double>(), master, n);
    else
      write_elements(args.in.as<float>(), master, n);
  });
}

}  // namespace trainer::ops::cpu
