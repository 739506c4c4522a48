// Every collective, of every element type, against results that are known beforehand.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <thread>
#include <type_traits>

#include "tests/parallel/element_types.h"
#include "tests/support/mpi_world.h"

namespace trainer {
namespace {

const Context kHost;

/// Small integers: exact in every type and in every order, also summed over 8 ranks in 8 bits.
double value_at(int rank, std::int64_t i) {
  return static_cast<double>((rank + 1) * ((i * 7 + 3) % 5));
}

template <class T>
std::vector<T> values(int rank, std::int64_t n) {
  std::vector<T> data;
  for (std::int64_t i = 0; i < n; ++i) data.push_back(from_double<T>(value_at(rank, i)));
  return data;
}

// Nothing, one, fewer than ranks, odd, about the size that travels with the first message, several pieces.
constexpr std::int64_t kCounts[] = {0, 1, 3, 7, 129, 1024, 1025, 5003};

/// `small_pieces`: messages of 64 bytes, so that every count above it takes the path of very long tensors.
template <class T>
class Collectives : public testing::Test {
 protected:
  void for_all_counts(const std::function<void(Communicator&, std::int64_t)>& check) {
    const std::unique_ptr<Communicator> small_pieces = new_test_world({.timeout_seconds = 60, .piece_bytes = 64});
    for (Communicator* group : {&test_world(), small_pieces.get()})
      for (const std::int64_t n : kCounts) {
        SCOPED_TRACE(n);
        check(*group, n);
        if (testing::Test::HasFatalFailure()) return;
      }
  }
  static double sum_at(int ranks, std::int64_t i) { return value_at(0, i) * ranks * (ranks + 1) / 2; }
};

TYPED_TEST_SUITE(Collectives, AllTypes);

TYPED_TEST(Collectives, AllReduce) {
  this->for_all_counts([&](Communicator& group, std::int64_t n) {
    for (const ReduceOp op : {ReduceOp::sum, ReduceOp::max, ReduceOp::min}) {
      std::vector<TypeParam> data = values<TypeParam>(group.rank(), n);
      group.all_reduce(kHost, tensor_of(data), op);
      for (std::int64_t i = 0; i < n; ++i) {
        const double expected = op == ReduceOp::sum   ? this->sum_at(group.size(), i)
                                : op == ReduceOp::max ? value_at(group.size() - 1, i)
                                                      : value_at(0, i);
        ASSERT_EQ(to_double(data[static_cast<std::size_t>(i)]), expected) << "element " << i;
      }
    }
  });
}

TYPED_TEST(Collectives, ReduceScatterIntoOtherMemoryAndInPlace) {
  this->for_all_counts([&](Communicator& group, std::int64_t n) {
    const std::int64_t first = group.rank() * n;
    std::vector<TypeParam> in = values<TypeParam>(group.rank(), group.size() * n);
    std::vector<TypeParam> out(static_cast<std::size_t>(n));
    group.reduce_scatter(kHost, tensor_of(in), tensor_of(out));
    for (std::int64_t i = 0; i < n; ++i)
      ASSERT_EQ(to_double(out[static_cast<std::size_t>(i)]), this->sum_at(group.size(), first + i));
    for (std::int64_t i = 0; i < group.size() * n; ++i)
      ASSERT_EQ(to_double(in[static_cast<std::size_t>(i)]), value_at(group.rank(), i)) << "the input was changed";

    group.reduce_scatter(kHost, tensor_of(in), tensor_of(in).flat_range(first, n));
    for (std::int64_t i = 0; i < n; ++i)
      ASSERT_EQ(to_double(in[static_cast<std::size_t>(first + i)]), this->sum_at(group.size(), first + i));
  });
}

/// Of float types, which gradients travel in, and in the type that they are added up in.
TYPED_TEST(Collectives, ReduceScatterIntoASum) {
  if constexpr (std::is_floating_point_v<TypeParam> || kIs16Bit<TypeParam>) {
    using Sum = std::conditional_t<std::is_same_v<TypeParam, double>, double, float>;
    this->for_all_counts([&](Communicator& group, std::int64_t n) {
      for (const bool accumulate : {false, true}) {
        std::vector<TypeParam> in = values<TypeParam>(group.rank(), group.size() * n);
        std::vector<Sum> sum = values<Sum>(0, n);
        group.reduce_scatter_into(kHost, tensor_of(in), tensor_of(sum), accumulate);
        for (std::int64_t i = 0; i < n; ++i)
          ASSERT_EQ(to_double(sum[static_cast<std::size_t>(i)]),
                    (accumulate ? value_at(0, i) : 0.0) + this->sum_at(group.size(), group.rank() * n + i));
      }
    });
  }
}

TYPED_TEST(Collectives, AllGatherFromOtherMemoryAndInPlace) {
  this->for_all_counts([&](Communicator& group, std::int64_t n) {
    std::vector<TypeParam> in = values<TypeParam>(group.rank(), n);
    std::vector<TypeParam> apart(static_cast<std::size_t>(group.size() * n));
    std::vector<TypeParam> in_place = apart;
    group.all_gather(kHost, tensor_of(in), tensor_of(apart));
    std::copy(in.begin(), in.end(), in_place.begin() + group.rank() * n);
    group.all_gather(kHost, tensor_of(in_place).flat_range(group.rank() * n, n), tensor_of(in_place));
    for (int r = 0; r < group.size(); ++r)
      for (std::int64_t i = 0; i < n; ++i) {
        ASSERT_EQ(to_double(apart[static_cast<std::size_t>(r * n + i)]), value_at(r, i));
        ASSERT_EQ(to_double(in_place[static_cast<std::size_t>(r * n + i)]), value_at(r, i));
      }
  });
}

TYPED_TEST(Collectives, RotateByEveryShift) {
  this->for_all_counts([&](Communicator& group, std::int64_t n) {
    const std::vector<TypeParam> in = values<TypeParam>(group.rank(), n);
    for (int shift = 0; shift < group.size(); ++shift) {
      std::vector<TypeParam> sent = in, out(in.size());
      group.rotate(kHost, tensor_of(sent), tensor_of(out), shift);
      for (std::int64_t i = 0; i < n; ++i) {
        const double expected = value_at((group.rank() + shift) % group.size(), i);
        ASSERT_EQ(to_double(out[static_cast<std::size_t>(i)]), expected) << "shift " << shift;
        ASSERT_EQ(to_double(sent[static_cast<std::size_t>(i)]), value_at(group.rank(), i)) << "the input was changed";
      }
    }
  });
}

TYPED_TEST(Collectives, BroadcastFromEveryRoot) {
  this->for_all_counts([&](Communicator& group, std::int64_t n) {
    for (int root = 0; root < group.size(); ++root) {
      std::vector<TypeParam> data = values<TypeParam>(group.rank(), n);
      group.broadcast(kHost, tensor_of(data), root);
      for (std::int64_t i = 0; i < n; ++i)
        ASSERT_EQ(to_double(data[static_cast<std::size_t>(i)]), value_at(root, i)) << "root " << root;
    }
  });
}

TEST(Barrier, NobodyLeavesBeforeAllHaveCome) {
  Communicator& world = test_world();
  // Each rank in turn is late; the others must see its mark, which it sets just before it enters.
  for (int late = 0; late < world.size(); ++late) {
    using Clock = std::chrono::steady_clock;  // one clock for all processes of a machine
    std::int64_t entered = 0;
    if (world.rank() == late) {
      std::this_thread::sleep_for(std::chrono::milliseconds(30));
      entered = Clock::now().time_since_epoch().count();
    }
    world.barrier();
    const std::int64_t left = Clock::now().time_since_epoch().count();
    world.broadcast(kHost, tensor_over(&entered, Dtype::i64, 1, 1), late);
    EXPECT_GE(left, entered) << "rank " << late << " was late";
  }
}

TEST(Split, RanksWithOneColorFormAGroupInTheOrderOfTheirKeys) {
  Communicator& world = test_world();
  const std::unique_ptr<Communicator> reversed = world.split(world.rank() % 2, -world.rank(), "reversed");
  EXPECT_EQ(reversed->name(), "reversed");
  EXPECT_EQ(reversed->size(), (world.size() + (world.rank() % 2 == 0 ? 1 : 0)) / 2);
  std::int32_t mine = world.rank();
  std::vector<std::int32_t> members(static_cast<std::size_t>(reversed->size()));
  reversed->all_gather(kHost, tensor_over(&mine, Dtype::i32, 1, 1), tensor_of(members));
  for (std::size_t i = 0; i < members.size(); ++i) {
    EXPECT_EQ(members[i] % 2, world.rank() % 2);
    if (i > 0) {
      EXPECT_LT(members[i], members[i - 1]);
    }
  }
}

}  // namespace
}  // namespace trainer
