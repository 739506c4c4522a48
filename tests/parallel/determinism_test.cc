// The bits of reductions: fixed order, one rounding, the same on every rank and for every way to reduce.
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>

#include "core/runtime/rng.h"
#include "tests/parallel/element_types.h"
#include "tests/support/mpi_world.h"

namespace trainer {
namespace {

const Context kHost;

/// Values of mixed size and sign, whose sum depends on the order of adding.
template <class T>
T value_at(int rank, std::int64_t i) {
  const auto index = static_cast<std::uint64_t>(i);
  const auto key = static_cast<std::uint64_t>(rank);
  const double scale = std::ldexp(1.0, static_cast<int>(10 * uniform_at(key + 100, index)) - 5);
  return from_double<T>(scale * normal_at(key, index));
}

template <class T>
std::vector<T> values(int rank, std::int64_t n) {
  std::vector<T> data;
  for (std::int64_t i = 0; i < n; ++i) data.push_back(value_at<T>(rank, i));
  return data;
}

template <class T>
bool same_bits(const T& a, const T& b) {
  using Bytes = std::array<unsigned char, sizeof(T)>;
  return std::bit_cast<Bytes>(a) == std::bit_cast<Bytes>(b);
}

template <class T>
class Determinism : public testing::Test {};
TYPED_TEST_SUITE(Determinism, FloatTypes);

TYPED_TEST(Determinism, SumsAreAddedInRankOrderAndRoundedOnce) {
  using A = std::conditional_t<std::is_same_v<TypeParam, double>, double, float>;
  for (const std::int64_t n : {std::int64_t{5}, std::int64_t{3001}}) {
    std::vector<TypeParam> data = values<TypeParam>(test_world().rank(), n);
    test_world().all_reduce(kHost, tensor_of(data), ReduceOp::sum);
    int differs = 0;
    for (std::int64_t i = 0; i < n; ++i) {
      A sum = 0, backwards = 0, rounded_each_time = 0;
      for (int r = 0; r < test_world().size(); ++r) {
        sum += static_cast<A>(value_at<TypeParam>(r, i));
        backwards += static_cast<A>(value_at<TypeParam>(test_world().size() - 1 - r, i));
        rounded_each_time =
            static_cast<A>(static_cast<TypeParam>(rounded_each_time + static_cast<A>(value_at<TypeParam>(r, i))));
      }
      const auto expected = static_cast<TypeParam>(sum);
      ASSERT_TRUE(same_bits(data[static_cast<std::size_t>(i)], expected)) << "element " << i;
      // float32 sums of 16-bit values are nearly always exact: there the number of roundings shows, not the order.
      const A other = kIs16Bit<TypeParam> ? rounded_each_time : backwards;
      differs += static_cast<A>(expected) != other ? 1 : 0;
    }
    // Otherwise this test would prove nothing.
    if (test_world().size() > 2 && n > 1000) {
      EXPECT_GT(differs, n / 20);
    }
  }
}

TYPED_TEST(Determinism, ReduceScatterHasTheBitsOfAllReduceOnEveryRank) {
  Communicator& world = test_world();
  const std::unique_ptr<Communicator> small_pieces = new_test_world({.timeout_seconds = 60, .piece_bytes = 192});
  for (const std::int64_t n : {std::int64_t{2}, std::int64_t{771}}) {
    const std::int64_t total = n * world.size();
    const std::vector<TypeParam> mine = values<TypeParam>(world.rank(), total);
    std::vector<TypeParam> reduced = mine, pieced = mine, scattered = mine;
    world.all_reduce(kHost, tensor_of(reduced), ReduceOp::sum);
    small_pieces->all_reduce(kHost, tensor_of(pieced), ReduceOp::sum);
    const Tensor part = tensor_of(scattered).flat_range(world.rank() * n, n);
    world.reduce_scatter(kHost, tensor_of(scattered), part);
    world.all_gather(kHost, part, tensor_of(scattered));
    std::vector<TypeParam> of_rank_0 = reduced;
    world.broadcast(kHost, tensor_of(of_rank_0), 0);
    for (std::size_t i = 0; i < reduced.size(); ++i) {
      ASSERT_TRUE(same_bits(reduced[i], scattered[i])) << "reduce_scatter differs at " << i;
      ASSERT_TRUE(same_bits(reduced[i], pieced[i])) << "the size of messages shows at " << i;
      ASSERT_TRUE(same_bits(reduced[i], of_rank_0[i])) << "ranks differ at " << i;
    }
  }
}

TEST(Reduction, NaNOfAnyRankShowsInEveryReduction) {
  Communicator& world = test_world();
  for (int poisoned = 0; poisoned < world.size(); ++poisoned)
    for (const ReduceOp op : {ReduceOp::sum, ReduceOp::max, ReduceOp::min}) {
      std::vector<float> data = {1.0F, world.rank() == poisoned ? std::nanf("") : 2.0F};
      world.all_reduce(kHost, tensor_of(data), op);
      EXPECT_FALSE(std::isnan(data[0]));
      EXPECT_TRUE(std::isnan(data[1])) << "poisoned rank " << poisoned;
    }
}

}  // namespace
}  // namespace trainer
