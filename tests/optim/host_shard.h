// A parameter shard in host memory, for tests of the optimizer ops.
#pragma once
#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "core/runtime/rng.h"
#include "kernels/ops.h"

namespace trainer::test {

class HostShard {
 public:
  /// All zero. `m` and `v` are there unless their type is not a floating one.
  HostShard(Dtype weight, Dtype moments, std::int64_t n) : n_(n) {
    tensors_.weight = allocate(weight);
    if (weight == Dtype::bf16) tensors_.low = allocate(Dtype::u16);
    if (weight == Dtype::f16) tensors_.master = allocate(Dtype::f32);
    tensors_.grad = allocate(accumulator_dtype(weight));
    if (is_floating(moments)) {
      tensors_.m = allocate(moments);
      tensors_.v = allocate(moments);
    }
  }
  HostShard(const HostShard&) = delete;
  HostShard& operator=(const HostShard&) = delete;

  const ops::ShardTensors& tensors() const { return tensors_; }

  void write_master(std::vector<double> values) const {
    ops::master_write(Context{}, {tensor_over(values.data(), Dtype::f64, 1, n_), tensors_});
  }
  std::vector<double> read_master() const {
    std::vector<double> values(static_cast<std::size_t>(n_));
    ops::master_read(Context{}, {tensors_, tensor_over(values.data(), Dtype::f64, 1, n_)});
    return values;
  }
  void write_grad(std::vector<double> values) const {
    for (std::int64_t i = 0; i < n_; ++i) {
      if (tensors_.grad.dtype == Dtype::f64)
        tensors_.grad.as<double>()[i] = values[static_cast<std::size_t>(i)];
      else
        tensors_.grad.as<float>()[i] = static_cast<float>(values[static_cast<std::size_t>(i)]);
    }
  }

  /// Every byte of weights, masters and moments.
  std::vector<std::byte> state_bytes() const {
    std::vector<std::byte> bytes;
    for (const Tensor& t : {tensors_.weight, tensors_.low, tensors_.master, tensors_.m, tensors_.v}) {
      if (!t) continue;
      const auto* data = static_cast<const std::byte*>(t.data);
      bytes.insert(bytes.end(), data, data + t.bytes());
    }
    return bytes;
  }

 private:
  Tensor allocate(Dtype dtype) {
    memory_.emplace_back(static_cast<std::size_t>(n_ * dtype_size(dtype)));
    return tensor_over(memory_.back().data(), dtype, 1, n_);
  }

  std::int64_t n_;
  ops::ShardTensors tensors_;
  std::deque<std::vector<std::byte>> memory_;
};

/// n normal numbers of the stream (seed, stream).
inline std::vector<double> normals(std::uint64_t seed, std::uint64_t stream, std::int64_t n, double std = 1.0) {
  std::vector<double> values(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = std * normal_at(mix_key(seed, stream), i);
  return values;
}

}  // namespace trainer::test
