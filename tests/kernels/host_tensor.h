// Tensors that own their memory, for the tests of the ops.
#pragma once
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "core/runtime/context.h"
#include "core/runtime/dtype.h"
#include "core/runtime/rng.h"
#include "core/runtime/tensor.h"

namespace trainer::testing {

/// A value as an element of `dtype` would hold it.
inline double rounded_to(Dtype dtype, double value) {
  if (dtype == Dtype::f32) return static_cast<float>(value);
  if (dtype == Dtype::bf16) return static_cast<float>(Bfloat16(static_cast<float>(value)));
  if (dtype == Dtype::f16) return static_cast<float>(Float16(static_cast<float>(value)));
  return value;
}

/// [rows, cols] of a floating type. With `padding`, rows are that many elements further apart, and the gaps hold a bit
/// pattern that must survive: an op that ignores the stride is seen.
class HostTensor {
 public:
  HostTensor() = default;
  HostTensor(Dtype dtype, std::int64_t rows, std::int64_t cols, std::int64_t padding = 0)
      : dtype_(dtype),
        rows_(rows),
        cols_(cols),
        stride_(cols + padding),
        // Doubles, so that the memory is aligned for every type. 0xA5... is a number in each of them.
        memory_(static_cast<std::size_t>((rows * stride_ * dtype_size(dtype) + 7) / 8)) {
    std::memset(memory_.data(), kGap, memory_.size() * sizeof(double));
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t c = 0; c < cols; ++c) set(r, c, 0.0);
  }

  Tensor tensor() { return {memory_.data(), dtype_, rows_, cols_, stride_}; }
  operator Tensor() { return tensor(); }
  /// For inputs: a Tensor has no form that is const.
  Tensor tensor() const { return const_cast<HostTensor*>(this)->tensor(); }
  operator Tensor() const { return tensor(); }
  Dtype dtype() const { return dtype_; }
  std::int64_t rows() const { return rows_; }
  std::int64_t cols() const { return cols_; }

  double get(std::int64_t r, std::int64_t c) const {
    const void* p = at(r, c);
    switch (dtype_) {
      case Dtype::f64:
        return *static_cast<const double*>(p);
      case Dtype::f32:
        return *static_cast<const float*>(p);
      case Dtype::bf16:
        return static_cast<float>(*static_cast<const Bfloat16*>(p));
      default:
        return static_cast<float>(*static_cast<const Float16*>(p));
    }
  }
  void set(std::int64_t r, std::int64_t c, double value) {
    void* p = const_cast<void*>(at(r, c));
    switch (dtype_) {
      case Dtype::f64:
        *static_cast<double*>(p) = value;
        break;
      case Dtype::f32:
        *static_cast<float*>(p) = static_cast<float>(value);
        break;
      case Dtype::bf16:
        *static_cast<Bfloat16*>(p) = Bfloat16(static_cast<float>(value));
        break;
      default:
        *static_cast<Float16*>(p) = Float16(static_cast<float>(value));
    }
  }
  HostTensor& fill(double value) {
    for (std::int64_t r = 0; r < rows_; ++r)
      for (std::int64_t c = 0; c < cols_; ++c) set(r, c, value);
    return *this;
  }
  /// Standard normal values times `scale`.
  HostTensor& randomise(std::uint64_t key, double scale = 1.0) {
    for (std::int64_t r = 0; r < rows_; ++r)
      for (std::int64_t c = 0; c < cols_; ++c)
        set(r, c, scale * normal_at(key, static_cast<std::uint64_t>(r * cols_ + c)));
    return *this;
  }

  std::vector<double> values() const {
    std::vector<double> all;
    for (std::int64_t r = 0; r < rows_; ++r)
      for (std::int64_t c = 0; c < cols_; ++c) all.push_back(get(r, c));
    return all;
  }
  /// The elements of an unpadded float64 tensor.
  std::span<double> span() { return {memory_.data(), static_cast<std::size_t>(rows_ * cols_)}; }

  /// False when something wrote between the rows.
  bool gaps_intact() const {
    const auto* bytes = reinterpret_cast<const unsigned char*>(memory_.data());
    const std::int64_t size = dtype_size(dtype_);
    for (std::int64_t r = 0; r < rows_; ++r)
      for (std::int64_t b = (r * stride_ + cols_) * size; b < (r + 1) * stride_ * size; ++b)
        if (bytes[b] != kGap) return false;
    return true;
  }
  bool same_bits(const HostTensor& other) const {
    return memory_.size() == other.memory_.size() &&
           std::memcmp(memory_.data(), other.memory_.data(), memory_.size() * sizeof(double)) == 0;
  }

 private:
  static constexpr unsigned char kGap = 0xA5;

  const void* at(std::int64_t r, std::int64_t c) const {
    return reinterpret_cast<const char*>(memory_.data()) + (r * stride_ + c) * dtype_size(dtype_);
  }

  Dtype dtype_ = Dtype::f64;
  std::int64_t rows_ = 0, cols_ = 0, stride_ = 0;
  std::vector<double> memory_;
};

inline HostTensor random_tensor(std::int64_t rows, std::int64_t cols, std::uint64_t key, double scale = 1.0) {
  return HostTensor(Dtype::f64, rows, cols).randomise(key, scale);
}

/// [1, n] of int32: token ids, positions, sequence starts.
class HostIds {
 public:
  HostIds(std::initializer_list<std::int32_t> values) : values_(values) {}
  explicit HostIds(std::vector<std::int32_t> values) : values_(std::move(values)) {}
  operator Tensor() const {
    return tensor_over(const_cast<std::int32_t*>(values_.data()), Dtype::i32, 1,
                       static_cast<std::int64_t>(values_.size()));
  }
  std::int32_t operator[](std::int64_t i) const { return values_[static_cast<std::size_t>(i)]; }

 private:
  std::vector<std::int32_t> values_;
};

/// Sum of a * b: the loss of a gradient check, with b the gradient handed to the backward op.
inline double dot(const HostTensor& a, const HostTensor& b) {
  double sum = 0;
  for (std::int64_t r = 0; r < a.rows(); ++r)
    for (std::int64_t c = 0; c < a.cols(); ++c) sum += a.get(r, c) * b.get(r, c);
  return sum;
}

/// a - b, elementwise.
inline std::vector<double> minus(const HostTensor& a, const HostTensor& b) {
  std::vector<double> difference = a.values();
  const std::vector<double> values = b.values();
  for (std::size_t i = 0; i < difference.size(); ++i) difference[i] -= values[i];
  return difference;
}

}  // namespace trainer::testing
