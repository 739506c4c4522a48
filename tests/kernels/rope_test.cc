#include <gtest/gtest.h>

#include "kernels/ops.h"
#include "tests/kernels/host_tensor.h"
#include "tests/support/gradcheck.h"

namespace trainer::testing {
namespace {

const Context kCpu{};

double angle(std::int64_t position, std::int64_t i) {
  return static_cast<double>(position) / std::pow(100.0, static_cast<double>(i) / 4.0);
}

HostTensor cos_sin_table(Dtype dtype, std::int64_t positions, std::int64_t half) {
  HostTensor table(dtype, positions, 2 * half);
  for (std::int64_t p = 0; p < positions; ++p)
    for (std::int64_t i = 0; i < half; ++i) {
      table.set(p, i, std::cos(angle(p, i)));
      table.set(p, half + i, std::sin(angle(p, i)));
    }
  return table;
}

TEST(Rope, QuarterTurnByHand) {
  HostTensor x(Dtype::f64, 1, 5), table(Dtype::f64, 1, 4);
  for (std::int64_t c = 0; c < 5; ++c) x.set(0, c, static_cast<double>(c + 1));
  table.set(0, 2, 1);  // pair (0, 2): cos 0, sin 1
  table.set(0, 1, 1);  // pair (1, 3): cos 1, sin 0
  const HostIds positions{0};
  ops::rope(kCpu, {.x = x, .positions = positions, .cos_sin = table, .heads = 1});
  EXPECT_EQ(x.values(), (std::vector<double>{-3, 2, 1, 4, 5}));
}

TEST(Rope, RotatesPairsAsComplexNumbers) {
  const std::int64_t heads = 3;
  const HostIds positions{4, 0, 2, 4, 1};
  for (const auto& [half, head_dim] : {std::pair<std::int64_t, std::int64_t>{3, 6}, {2, 7}, {1, 6}}) {
    const HostTensor before = random_tensor(5, heads * head_dim, 1);
    HostTensor x = before;
    ops::rope(kCpu, {.x = x, .positions = positions, .cos_sin = cos_sin_table(Dtype::f64, 5, half), .heads = heads});
    for (std::int64_t n = 0; n < 5; ++n)
      for (std::int64_t h = 0; h < heads; ++h)
        for (std::int64_t d = 0; d < head_dim; ++d) {
          const std::int64_t i = d % half, c = h * head_dim;
          const double radius = std::hypot(before.get(n, c + i), before.get(n, c + i + half));
          const double phase = std::atan2(before.get(n, c + i + half), before.get(n, c + i)) + angle(positions[n], i);
          const double expected = d < half       ? radius * std::cos(phase)
                                  : d < 2 * half ? radius * std::sin(phase)
                                                 : before.get(n, c + d);  // partial rotary: the rest stays
          EXPECT_NEAR(x.get(n, c + d), expected, 1e-14);
        }
  }
}

TEST(Rope, InverseIsTheGradientAndUndoesTheRotation) {
  const std::int64_t heads = 2, head_dim = 7, half = 2;
  const HostIds positions{3, 1, 3};
  const HostTensor table = cos_sin_table(Dtype::f64, 4, half);
  HostTensor x = random_tensor(3, heads * head_dim, 1), out = x;
  const HostTensor dout = random_tensor(3, heads * head_dim, 2);
  const auto loss = [&] {
    out = x;
    ops::rope(kCpu, {.x = out, .positions = positions, .cos_sin = table, .heads = heads});
    return dot(out, dout);
  };
  HostTensor dx = dout;
  ops::rope(kCpu, {.x = dx, .positions = positions, .cos_sin = table, .heads = heads, .inverse = true});
  EXPECT_TRUE(gradient_matches(x.span(), dx.span(), loss));
  loss();
  ops::rope(kCpu, {.x = out, .positions = positions, .cos_sin = table, .heads = heads, .inverse = true});
  for (std::size_t i = 0; i < out.span().size(); ++i) EXPECT_NEAR(out.span()[i], x.span()[i], 1e-15);
}

TEST(Rope, RefusesAPositionBeyondTheTable) {
  HostTensor x = random_tensor(2, 6, 1);
  const HostTensor table = cos_sin_table(Dtype::f64, 4, 3);
  const HostIds beyond{0, 4}, negative{-1, 0};
  EXPECT_THROW(ops::rope(kCpu, {.x = x, .positions = beyond, .cos_sin = table, .heads = 1}), Error);
  EXPECT_THROW(ops::rope(kCpu, {.x = x, .positions = negative, .cos_sin = table, .heads = 1}), Error);
}

}  // namespace
}  // namespace trainer::testing
