#include "core/runtime/tensor.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

namespace trainer {
namespace {

class TensorViews : public ::testing::Test {
 protected:
  TensorViews() : values_(24) { std::iota(values_.begin(), values_.end(), 0.0f); }
  Tensor whole() { return tensor_over(values_.data(), Dtype::f32, 4, 6); }
  static float at(const Tensor& t, std::int64_t r, std::int64_t c) { return t.as<float>()[r * t.stride + c]; }

  std::vector<float> values_;
};

TEST_F(TensorViews, RangesOfRowsAndColumnsShareTheMemory) {
  const Tensor view = whole().row_range(1, 2).col_range(2, 3);
  EXPECT_EQ(view.rows, 2);
  EXPECT_EQ(view.cols, 3);
  EXPECT_EQ(view.stride, 6);
  for (std::int64_t r = 0; r < 2; ++r)
    for (std::int64_t c = 0; c < 3; ++c) EXPECT_EQ(at(view, r, c), static_cast<float>((1 + r) * 6 + 2 + c));
  EXPECT_FALSE(view.contiguous());
  EXPECT_TRUE(view.row_range(0, 1).contiguous());
  EXPECT_EQ(view.numel(), 6);
  EXPECT_EQ(view.bytes(), 24);
}

TEST_F(TensorViews, ReshapeAndFlatKeepTheOrder) {
  const Tensor reshaped = whole().reshape(3, 8);
  EXPECT_EQ(at(reshaped, 2, 1), 17.0f);
  const Tensor flat = whole().flat_range(5, 7);
  EXPECT_EQ(flat.rows, 1);
  EXPECT_EQ(flat.cols, 7);
  EXPECT_EQ(at(flat, 0, 0), 5.0f);
  EXPECT_TRUE(flat.contiguous());
}

TEST_F(TensorViews, WhatDoesNotFitIsRefused) {
  EXPECT_THROW(whole().row_range(3, 2), Error);
  EXPECT_THROW(whole().row_range(-1, 2), Error);
  EXPECT_THROW(whole().col_range(5, 2), Error);
  EXPECT_THROW(whole().reshape(5, 5), Error);
  EXPECT_THROW(whole().col_range(0, 3).reshape(3, 4), Error);
  EXPECT_THROW(whole().as<double>(), Error);
}

TEST(Tensor, AbsentAndPlanned) {
  EXPECT_FALSE(Tensor{});
  const Tensor planned = tensor_over(nullptr, Dtype::bf16, 4, 6);
  EXPECT_TRUE(planned);
  EXPECT_EQ(planned.bytes(), 48);
  EXPECT_EQ(planned.row_range(2, 1).data, nullptr);
}

}  // namespace
}  // namespace trainer
