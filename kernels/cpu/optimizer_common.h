// How the CPU optimizer ops read and write a parameter's state: one accessor for each form that a master or a moment
// can have, so that each update rule is written once. Math is the type that the rule is computed in.
#pragma once
#include <bit>
#include <cstdint>
#include <type_traits>

#include "kernels/cpu/common.h"
#include "kernels/optimizer_bits.h"

namespace trainer::ops::cpu {

// ---- masters ------------------------------------------------------------------------------------------------------
/// float32, float64: the weight is the master.
template <class T>
struct PlainMaster {
  using Math = T;
  T* weight;
  Math load(std::int64_t i) const { return weight[i]; }
  void store(std::int64_t i, Math value) const { weight[i] = value; }
};

/// bf16 weight and low bits: together a float32 master.
struct SplitMaster {
  using Math = float;
  Bfloat16* weight;
  std::uint16_t* low;
  Math load(std::int64_t i) const { return std::bit_cast<float>(join_master(weight[i].bits, low[i])); }
  void store(std::int64_t i, Math value) const {
    const std::uint32_t bits = canonical_master_bits(std::bit_cast<std::uint32_t>(value));
    weight[i].bits = bf16_weight_of_master(bits);
    low[i] = low_bits_of_master(bits);
  }
};

/// fp16 weight, cast from a float32 master.
struct CastMaster {
  using Math = float;
  Float16* weight;
  float* master;
  Math load(std::int64_t i) const { return master[i]; }
  void store(std::int64_t i, Math value) const {
    master[i] = value;
    weight[i] = Float16(value);
  }
};

/// Calls body(accessor) for the form that this shard's master has. All parts that the form needs must be there.
template <class Body>
void visit_master(const ShardTensors& shard, Body&& body) {
  const std::int64_t n = shard.weight.numel();
  switch (shard.weight.dtype) {
    case Dtype::f64:
      return body(PlainMaster<double>{shard.weight.as<double>()});
    case Dtype::f32:
      return body(PlainMaster<float>{shard.weight.as<float>()});
    case Dtype::bf16:
      TRAINER_CHECK(shard.low.numel() == n, "{} low parts for {} bf16 weights", shard.low.numel(), n);
      return body(SplitMaster{shard.weight.as<Bfloat16>(), shard.low.as<std::uint16_t>()});
    case Dtype::f16:
      TRAINER_CHECK(shard.master.numel() == n, "{} masters for {} fp16 weights", shard.master.numel(), n);
      return body(CastMaster{shard.weight.as<Float16>(), shard.master.as<float>()});
    default:
      TRAINER_CHECK(false, "weights cannot be {}", dtype_name(shard.weight.dtype));
  }
}

// ---- moments ------------------------------------------------------------------------------------------------------
template <class T>
struct PlainMoment {
  static constexpr bool kStochastic = false;
  T* data;
  explicit PlainMoment(const Tensor& t) : data(t.as<T>()) {}
  template <class Math>
  Math load(std::int64_t i) const {
    return static_cast<Math>(data[i]);
  }
  template <class Math>
  void store(std::int64_t i, Math value, std::uint32_t /*noise*/) const {
    data[i] = static_cast<T>(value);
  }
};

struct StochasticMoment {
  static constexpr bool kStochastic = true;
  Bfloat16* data;
  explicit StochasticMoment(const Tensor& t) : data(t.as<Bfloat16>()) {}
  template <class Math>
  Math load(std::int64_t i) const {
    return static_cast<Math>(static_cast<float>(data[i]));
  }
  /// `noise` is uniform in [0, 2^16).
  template <class Math>
  void store(std::int64_t i, Math value, std::uint32_t noise) const {
    data[i].bits = bf16_stochastic(std::bit_cast<std::uint32_t>(static_cast<float>(value)), noise);
  }
};

/// Reads as zero and keeps nothing: sgd without momentum.
struct NoMoment {
  static constexpr bool kStochastic = false;
  explicit NoMoment(const Tensor& /*absent*/) {}
  template <class Math>
  Math load(std::int64_t /*i*/) const {
    return Math(0);
  }
  template <class Math>
  void store(std::int64_t /*i*/, Math /*value*/, std::uint32_t /*noise*/) const {}
};

/// Calls body(std::type_identity<Moment>{}) with the accessor type for moments of this element type.
template <class Body>
void visit_moment(Dtype dtype, Body&& body) {
  switch (dtype) {
    case Dtype::f64:
      return body(std::type_identity<PlainMoment<double>>{});
    case Dtype::f32:
      return body(std::type_identity<PlainMoment<float>>{});
    case Dtype::bf16:
      return body(std::type_identity<StochasticMoment>{});
    default:
      TRAINER_CHECK(false, "moments cannot be {}", dtype_name(dtype));
  }
}

}  // namespace trainer::ops::cpu
