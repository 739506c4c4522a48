// Tests over element types: vectors of any of them, converted from and to double.
#pragma once
#include <gtest/gtest.h>

#include <cstdint>
#include <type_traits>
#include <vector>

#include "core/runtime/tensor.h"

namespace trainer {

template <class T>
constexpr bool kIs16Bit = std::is_same_v<T, Bfloat16> || std::is_same_v<T, Float16>;

template <class T>
double to_double(T value) {
  if constexpr (kIs16Bit<T>)
    return static_cast<double>(static_cast<float>(value));
  else
    return static_cast<double>(value);
}

template <class T>
T from_double(double value) {
  if constexpr (kIs16Bit<T>)
    return T(static_cast<float>(value));
  else
    return static_cast<T>(value);
}

template <class T>
Tensor tensor_of(std::vector<T>& data) {
  return tensor_over(data.data(), DtypeOf<T>::value, 1, static_cast<std::int64_t>(data.size()));
}

using AllTypes = testing::Types<double, float, Bfloat16, Float16, std::int32_t, std::int64_t, std::uint8_t>;
using FloatTypes = testing::Types<double, float, Bfloat16, Float16>;

}  // namespace trainer
