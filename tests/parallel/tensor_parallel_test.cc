// The crossings of tensor parallelism in steps: every row once, this rank's own first, and the sums of a collective.
#include "parallel/tensor_parallel.h"

#include <gtest/gtest.h>

#include <cstring>

#include "core/runtime/rng.h"
#include "tests/parallel/crossing_check.h"
#include "tests/parallel/element_types.h"
#include "tests/support/mpi_world.h"

namespace trainer {
namespace {

const Context kHost;

// One row; an odd number; enough for two chunks, of different length.
constexpr std::int64_t kLocalRows[] = {1, 5, 2049};

TEST(Crossings, BringTheRowsAndSumsOfEveryRound) {
  for (const bool sequence_parallel : {false, true})
    for (const bool overlap : {false, true})
      for (const std::int64_t rows : kLocalRows) {
        SCOPED_TRACE(fmt::format("sp {} overlap {} rows {}", sequence_parallel, overlap, rows));
        test::Crossings crossings(kHost, test_world(), sequence_parallel, overlap, rows);
        crossings.run();
        crossings.expect_right();
      }
}

TEST(Crossings, RangesAreAllRowsOnceOwnOnesFirst) {
  for (const std::int64_t rows : kLocalRows) {
    test::Crossings crossings(kHost, test_world(), true, true, rows);
    crossings.run();
    const std::vector<RowRange> ranges = crossings.first_ranges();
    EXPECT_EQ(ranges.front().first, crossings.tp().first_row(crossings.rows()));
    EXPECT_EQ(ranges.front().count, crossings.tp().local_rows(crossings.rows()));
    const std::size_t others = static_cast<std::size_t>(test_world().size() - 1) * (rows >= 2048 ? 2 : 1);
    EXPECT_EQ(ranges.size(), 1 + others);
    std::vector<int> seen(static_cast<std::size_t>(crossings.rows()));
    for (const RowRange& range : ranges)
      for (std::int64_t i = 0; i < range.count; ++i) ++seen[static_cast<std::size_t>(range.first + i)];
    for (const int times : seen) ASSERT_EQ(times, 1);
  }
}

template <class T>
class CrossingSums : public testing::Test {};
TYPED_TEST_SUITE(CrossingSums, FloatTypes);

TYPED_TEST(CrossingSums, HaveTheBitsOfAReduceScatter) {
  constexpr std::int64_t kCols = 3;
  Communicator& world = test_world();
  TensorParallel tp(kHost, world, true, true);
  if (!tp.sequence_parallel()) GTEST_SKIP() << "one rank";
  for (const std::int64_t rows : kLocalRows) {
    const std::int64_t n = rows * world.size();
    std::vector<TypeParam> mine;
    for (std::int64_t i = 0; i < n * kCols; ++i)
      mine.push_back(
          from_double<TypeParam>(normal_at(static_cast<std::uint64_t>(world.rank()), static_cast<std::uint64_t>(i))));
    std::vector<TypeParam> partial(mine.size()), parts(mine.size());
    std::vector<TypeParam> sum(static_cast<std::size_t>(rows * kCols)), expected = sum;
    const auto shaped = [&](std::vector<TypeParam>& data) {
      return tensor_of(data).reshape(static_cast<std::int64_t>(data.size()) / kCols, kCols);
    };
    world.reduce_scatter(kHost, tensor_of(mine), tensor_of(expected));
    const Leaving leaving{.partial = shaped(partial), .parts = shaped(parts), .sum = shaped(sum)};
    tp.start_leave(kHost, leaving, [&](const RowRange& range, const Tensor& y) {
      ops::cast(kHost, {.in = range.of(shaped(mine)), .out = y});
    });
    const Tensor got = tp.finish_leave(kHost, leaving);
    const Tensor wanted = shaped(expected);
    EXPECT_EQ(std::memcmp(got.data, wanted.data, static_cast<std::size_t>(wanted.bytes())), 0) << rows << " rows";
  }
}

}  // namespace
}  // namespace trainer
