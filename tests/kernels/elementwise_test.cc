#include <gtest/gtest.h>

#include "kernels/ops.h"
#include "tests/kernels/host_tensor.h"
#include "tests/support/gradcheck.h"

namespace trainer::testing {
namespace {

const Context kCpu{};
constexpr Dtype kFloats[] = {Dtype::f64, Dtype::f32, Dtype::bf16, Dtype::f16};

TEST(Fill, SetsRowsAndNothingBetween) {
  for (const Dtype dtype : kFloats) {
    HostTensor x(dtype, 3, 5, 2);
    ops::fill(kCpu, {.x = x, .value = 1.5});
    EXPECT_EQ(x.values(), std::vector<double>(15, 1.5));
    EXPECT_TRUE(x.gaps_intact());
  }
}

TEST(Cast, BetweenAllTypesRoundsToNearest) {
  for (const Dtype from : kFloats)
    for (const Dtype to : kFloats) {
      const HostTensor in = HostTensor(from, 3, 5, 1).randomise(1);
      HostTensor out(to, 3, 5, 4);
      ops::cast(kCpu, {.in = in, .out = out});
      for (std::int64_t r = 0; r < 3; ++r)
        for (std::int64_t c = 0; c < 5; ++c) EXPECT_EQ(out.get(r, c), rounded_to(to, in.get(r, c)));
      EXPECT_TRUE(out.gaps_intact());
    }
}

TEST(Cast, Float64ToSixteenBitsRoundsOnce) {
  // 1 + 2^-8 is a tie in bf16, 1 + 2^-11 one in fp16. What decides is far below fp32's last bit: rounding to fp32
  // first would lose it.
  const double tiny = 0x1p-40;
  HostTensor in(Dtype::f64, 1, 6);
  const double values[] = {1 + 0x1p-8 + tiny, 1 + 0x1p-8, -(1 + 3 * 0x1p-8 - tiny), 1 + 0x1p-11 + tiny, 1e300, 0x1p-25};
  for (std::int64_t c = 0; c < 6; ++c) in.set(0, c, values[c]);
  HostTensor bf16(Dtype::bf16, 1, 6), f16(Dtype::f16, 1, 6);
  ops::cast(kCpu, {.in = in, .out = bf16});
  ops::cast(kCpu, {.in = in, .out = f16});
  EXPECT_EQ(bf16.get(0, 0), 1 + 0x1p-7);
  EXPECT_EQ(bf16.get(0, 1), 1);
  EXPECT_EQ(bf16.get(0, 2), -(1 + 0x1p-7));
  EXPECT_EQ(f16.get(0, 3), 1 + 0x1p-10);
  EXPECT_EQ(f16.get(0, 4), HUGE_VAL);
  EXPECT_EQ(bf16.get(0, 4), HUGE_VAL);
  EXPECT_EQ(f16.get(0, 5), 0);  // half the smallest subnormal: the tie goes to even
}

TEST(Add, MayOverwriteEitherInput) {
  const HostTensor a = random_tensor(3, 7, 1), b = random_tensor(3, 7, 2);
  HostTensor out(Dtype::f64, 3, 7), onto_a = a, onto_b = b;
  ops::add(kCpu, {.a = a, .b = b, .out = out});
  ops::add(kCpu, {.a = onto_a, .b = b, .out = onto_a});
  ops::add(kCpu, {.a = a, .b = onto_b, .out = onto_b});
  for (std::int64_t r = 0; r < 3; ++r)
    for (std::int64_t c = 0; c < 7; ++c) EXPECT_EQ(out.get(r, c), a.get(r, c) + b.get(r, c));
  EXPECT_TRUE(onto_a.same_bits(out));
  EXPECT_TRUE(onto_b.same_bits(out));
}

TEST(SumParts, AddsInOrderAndRoundsOnce) {
  constexpr std::int64_t kParts = 3, kRows = 2, kCols = 9;
  HostTensor parts(Dtype::bf16, kParts * kRows, kCols), out(Dtype::bf16, kRows, kCols);
  for (std::int64_t r = 0; r < kRows; ++r)
    for (std::int64_t c = 0; c < kCols; ++c) {
      parts.set(r, c, 256.0);
      parts.set(kRows + r, c, 1.0);  // half a unit in the last place: lost when rounded after each addition
      parts.set(2 * kRows + r, c, static_cast<double>(1 + 2 * c));
    }
  HostTensor onto = parts;
  ops::sum_parts(kCpu, {.parts = parts, .out = out});
  ops::sum_parts(kCpu, {.parts = onto, .out = onto.tensor().row_range(kRows, kRows)});
  for (std::int64_t r = 0; r < kRows; ++r)
    for (std::int64_t c = 0; c < kCols; ++c) {
      EXPECT_EQ(out.get(r, c), 258.0 + 2.0 * static_cast<double>(c)) << "257 + 1 + 2c is even, so it is exact";
      EXPECT_EQ(onto.get(kRows + r, c), out.get(r, c)) << "onto one of the parts";
    }
}

TEST(SumParts, TakesOneOfThemFromElsewhere) {
  const std::int64_t parts_count = 3, rows = 2, cols = 9;
  const HostTensor parts = random_tensor(parts_count * rows, cols, 1);
  HostTensor all(Dtype::f64, rows, cols);
  ops::sum_parts(kCpu, {.parts = parts, .out = all});
  for (std::int64_t part = 0; part < parts_count; ++part) {
    HostTensor rest = parts, own(Dtype::f64, rows, cols);
    ops::cast(kCpu, {.in = parts.tensor().row_range(part * rows, rows), .out = own});
    ops::fill(kCpu, {.x = rest.tensor().row_range(part * rows, rows), .value = std::nan("")});
    ops::sum_parts(kCpu, {.parts = rest, .own = own, .own_part = part, .out = own});
    EXPECT_TRUE(own.same_bits(all)) << part;
  }
}

/// The sum first, as a reduction and an addition after it would.
TEST(SumParts, AddsTheSumToWhatIsThere) {
  const HostTensor parts = random_tensor(6, 9, 1), before = random_tensor(2, 9, 2);
  HostTensor sum(Dtype::f64, 2, 9), expected = before, out = before;
  ops::sum_parts(kCpu, {.parts = parts, .out = sum});
  ops::add(kCpu, {.a = expected, .b = sum, .out = expected});
  ops::sum_parts(kCpu, {.parts = parts, .accumulate = true, .out = out});
  EXPECT_TRUE(out.same_bits(expected));
}

/// As a reduction in bf16, a cast and an addition would: the sum is rounded to the type of the parts first.
TEST(SumParts, OfAWiderTypeIsTheSumInTheTypeOfTheParts) {
  for (const Dtype dtype : {Dtype::bf16, Dtype::f16})
    for (const std::int64_t count : {1, 3}) {
      HostTensor parts(dtype, count * 2, 9), sum(dtype, 2, 9), out(Dtype::f32, 2, 9);
      ops::cast(kCpu, {.in = random_tensor(count * 2, 9, 1), .out = parts});
      ops::sum_parts(kCpu, {.parts = parts, .out = sum});
      HostTensor expected = out;
      ops::cast(kCpu, {.in = sum, .out = expected});
      ops::sum_parts(kCpu, {.parts = parts, .out = out});
      EXPECT_TRUE(out.same_bits(expected));

      HostTensor before(Dtype::f32, 2, 9);
      ops::cast(kCpu, {.in = random_tensor(2, 9, 2), .out = before});
      ops::add(kCpu, {.a = before, .b = expected, .out = expected});
      ops::sum_parts(kCpu, {.parts = parts, .accumulate = true, .out = before});
      EXPECT_TRUE(before.same_bits(expected));
    }
  HostTensor parts(Dtype::f32, 2, 9), narrower(Dtype::bf16, 2, 9);
  EXPECT_THROW(ops::sum_parts(kCpu, {.parts = parts, .out = narrower}), Error);
}

TEST(AddBias, AddsToEveryRowAndItsGradientIsTheColumnSum) {
  const HostTensor before = random_tensor(5, 70, 1);  // wider than a block of columns
  HostTensor x = before, bias = random_tensor(70, 1, 2);
  ops::add_bias(kCpu, {.x = x, .bias = bias});
  for (std::int64_t r = 0; r < 5; ++r)
    for (std::int64_t c = 0; c < 70; ++c) EXPECT_EQ(x.get(r, c), before.get(r, c) + bias.get(c, 0));

  HostTensor dbias(Dtype::f64, 70, 1);
  dbias.fill(1);
  ops::bias_backward(kCpu, {.dy = before, .dbias = dbias});
  for (std::int64_t c = 0; c < 70; ++c) {
    double sum = 1;
    for (std::int64_t r = 0; r < 5; ++r) sum += before.get(r, c);
    EXPECT_NEAR(dbias.get(c, 0), sum, 1e-14);
  }
}

TEST(Dropout, KeepsByTheGlobalIndexAndRescales) {
  const std::int64_t rows = 5, cols = 301, row_offset = 7;
  const DropoutKey key{.p = 0.3, .key = 99};
  const HostTensor x = random_tensor(rows, cols, 1);
  HostTensor out(Dtype::f64, rows, cols);
  ops::dropout(kCpu, {.x = x, .out = out, .dropout = key, .row_offset = row_offset});
  std::int64_t kept = 0;
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t c = 0; c < cols; ++c) {
      const bool keep = uniform_at(key.key, static_cast<std::uint64_t>((row_offset + r) * cols + c)) >= key.p;
      kept += keep;
      EXPECT_NEAR(out.get(r, c), keep ? x.get(r, c) / 0.7 : 0.0, 1e-15);
    }
  const auto n = static_cast<double>(rows * cols);
  EXPECT_NEAR(static_cast<double>(kept) / n, 0.7, 4 * std::sqrt(0.21 / n));
}

TEST(Dropout, PartsDrawWhatTheWholeDraws) {
  const DropoutKey key{.p = 0.5, .key = 3};
  HostTensor whole = random_tensor(6, 5, 1), parts = whole;
  ops::dropout(kCpu, {.x = whole, .out = whole, .dropout = key});
  for (const std::int64_t first : {0, 2})
    ops::dropout(kCpu, {.x = parts.tensor().row_range(first, first == 0 ? 2 : 4),
                        .out = parts.tensor().row_range(first, first == 0 ? 2 : 4),
                        .dropout = key,
                        .row_offset = first});
  EXPECT_TRUE(parts.same_bits(whole));
}

TEST(Dropout, IsItsOwnGradient) {
  const DropoutKey key{.p = 0.4, .key = 5};
  HostTensor x = random_tensor(3, 7, 1), out(Dtype::f64, 3, 7), dx = out;
  const HostTensor dout = random_tensor(3, 7, 2);
  const auto loss = [&] {
    ops::dropout(kCpu, {.x = x, .out = out, .dropout = key});
    return dot(out, dout);
  };
  ops::dropout(kCpu, {.x = dout, .out = dx, .dropout = key});
  EXPECT_TRUE(gradient_matches(x.span(), dx.span(), loss));
}

TEST(Dropout, ADroppedElementIsZeroWhateverItWasAndPOfOneDropsAll) {
  HostTensor x(Dtype::f32, 1, 64);
  x.fill(HUGE_VAL);
  ops::dropout(kCpu, {.x = x, .out = x, .dropout = {.p = 1.0, .key = 1}});
  EXPECT_EQ(x.values(), std::vector<double>(64, 0.0));
}

}  // namespace
}  // namespace trainer::testing
