#include <gtest/gtest.h>

#include "kernels/ops.h"
#include "tests/kernels/host_tensor.h"

namespace trainer::testing {
namespace {

// Every window of a tensor holds the elements of the whole, between its own gaps.
TEST(DrawNormal, IsAFunctionOfTheGlobalIndex) {
  constexpr std::int64_t kRows = 37, kCols = 29;
  const std::uint64_t key = 5;
  struct Window {
    std::int64_t row, col, rows, cols, padding;
  };
  for (const Window& w : {Window{0, 0, kRows, kCols, 0}, Window{3, 4, 20, 11, 5}, Window{36, 28, 1, 1, 3}}) {
    HostTensor out(Dtype::f64, w.rows, w.cols, w.padding);
    ops::draw_normal(
        {}, {.out = out, .key = key, .first_row = w.row, .first_col = w.col, .total_cols = kCols, .std = 0.02});
    for (std::int64_t r = 0; r < w.rows; ++r)
      for (std::int64_t c = 0; c < w.cols; ++c) {
        const auto index = static_cast<std::uint64_t>((w.row + r) * kCols + w.col + c);
        EXPECT_EQ(out.get(r, c), 0.02 * normal_at(key, index)) << r << ", " << c;
      }
    EXPECT_TRUE(out.gaps_intact());
  }
}

// Long enough for several threads, and past 2^32 elements into a tensor.
TEST(DrawNormal, LargeIndices) {
  HostTensor out(Dtype::f64, 3, 5000);
  const std::int64_t first_row = std::int64_t{1} << 30;
  ops::draw_normal({}, {.out = out, .key = 9, .first_row = first_row, .first_col = 0, .total_cols = 5000, .std = 1.0});
  for (const std::int64_t r : {0, 2})
    for (const std::int64_t c : {0, 4999})
      EXPECT_EQ(out.get(r, c), normal_at(9, static_cast<std::uint64_t>((first_row + r) * 5000 + c)));
}

}  // namespace
}  // namespace trainer::testing
