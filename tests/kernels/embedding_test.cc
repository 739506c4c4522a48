#include <gtest/gtest.h>

#include "kernels/ops.h"
#include "tests/kernels/host_tensor.h"
#include "tests/support/gradcheck.h"

namespace trainer::testing {
namespace {

const Context kCpu{};

// Rows 10 .. 14 are here; 9, 15 and 0 belong to other ranks; 12 occurs three times.
const HostIds kIds{12, 9, 10, 12, 15, 14, 12, 0};
constexpr std::int64_t kFirst = 10, kRows = 5, kTokens = 8;

TEST(Embedding, TakesRowsAndLeavesForeignIdsZero) {
  const std::int64_t width = 3;
  const HostTensor weight = random_tensor(kRows, width, 1), before = random_tensor(kTokens, width, 2);
  for (const bool accumulate : {false, true}) {
    HostTensor out = before;
    ops::embedding_forward(kCpu,
                           {.ids = kIds, .weight = weight, .out = out, .first_row = kFirst, .accumulate = accumulate});
    for (std::int64_t n = 0; n < kTokens; ++n)
      for (std::int64_t c = 0; c < width; ++c) {
        const std::int64_t row = kIds[n] - kFirst;
        const double looked_up = row >= 0 && row < kRows ? weight.get(row, c) : 0.0;
        EXPECT_EQ(out.get(n, c), accumulate ? before.get(n, c) + looked_up : looked_up);
      }
  }
}

TEST(Embedding, TwoPartsAddUpToTheWhole) {
  const std::int64_t width = 4;
  const HostTensor weight = random_tensor(6, width, 1);
  const HostIds ids{5, 0, 2, 3, 3, 1};
  HostTensor whole(Dtype::f64, 6, width), parts = whole;
  ops::embedding_forward(kCpu, {.ids = ids, .weight = weight, .out = whole});
  ops::embedding_forward(kCpu, {.ids = ids, .weight = weight.tensor().row_range(0, 3), .out = parts});
  ops::embedding_forward(
      kCpu, {.ids = ids, .weight = weight.tensor().row_range(3, 3), .out = parts, .first_row = 3, .accumulate = true});
  EXPECT_TRUE(parts.same_bits(whole));
}

TEST(Embedding, Gradient) {
  for (const std::int64_t width : {1, 70})
    for (const bool accumulate : {false, true}) {
      HostTensor weight = random_tensor(kRows, width, 1), out(Dtype::f64, kTokens, width);
      const HostTensor dout = random_tensor(kTokens, width, 2);
      const auto loss = [&] {
        ops::embedding_forward(kCpu, {.ids = kIds, .weight = weight, .out = out, .first_row = kFirst});
        return dot(out, dout);
      };
      const HostTensor before =
          accumulate ? random_tensor(kRows, width, 3) : HostTensor(Dtype::f64, kRows, width).fill(std::nan(""));
      HostTensor dweight = before;
      ops::embedding_backward(
          kCpu, {.ids = kIds, .dout = dout, .dweight = dweight, .first_row = kFirst, .accumulate = accumulate});
      EXPECT_TRUE(gradient_matches(weight.span(), accumulate ? minus(dweight, before) : dweight.values(), loss));
    }
}

}  // namespace
}  // namespace trainer::testing
