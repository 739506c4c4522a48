// Strings and decisions between hosts, counted traffic, and what a rank hears when the others do something else.
#include <gtest/gtest.h>

#include "parallel/host_exchange.h"
#include "parallel/recording_communicator.h"
#include "tests/parallel/element_types.h"
#include "tests/parallel/errors.h"
#include "tests/support/mpi_world.h"

namespace trainer {
namespace {

const Context kHost;

TEST(HostExchange, StringsOfEveryLengthReachEveryRank) {
  Communicator& world = test_world();
  const auto text_of = [](int rank) { return std::string(static_cast<std::size_t>(rank * 900), 'a') + '\0' + '\n'; };
  for (int root = 0; root < world.size(); ++root)
    EXPECT_EQ(broadcast_string(world, world.rank() == root ? text_of(root) : "mine", root), text_of(root));
  EXPECT_EQ(broadcast_string(world, "", 0), "");
  const std::vector<std::string> all = gather_strings(world, text_of(world.rank()));
  ASSERT_EQ(all.size(), static_cast<std::size_t>(world.size()));
  for (int r = 0; r < world.size(); ++r) EXPECT_EQ(all[static_cast<std::size_t>(r)], text_of(r));
  for (const std::string& text : gather_strings(world, "")) EXPECT_EQ(text, "");
}

TEST(HostExchange, DecisionsAndExtremes) {
  Communicator& world = test_world();
  EXPECT_TRUE(agree(world, true));
  EXPECT_FALSE(agree(world, false));
  for (int against = 0; against < world.size(); ++against) EXPECT_FALSE(agree(world, world.rank() != against));
  constexpr std::int64_t kBig = std::int64_t{1} << 60;
  EXPECT_EQ(max_over_ranks(world, kBig + world.rank()), kBig + world.size() - 1);
  EXPECT_EQ(min_over_ranks(world, -kBig - world.rank()), -kBig - world.size() + 1);
}

TEST(Recording, CountsCallsBytesAndWhatARingSends) {
  const auto record = std::make_shared<CommRecord>();
  RecordingCommunicator world(new_test_world(), record);
  const std::int64_t p = world.size(), n = 24;
  std::vector<float> whole(static_cast<std::size_t>(n * p)), part(static_cast<std::size_t>(n));
  const std::unique_ptr<Communicator> dp = world.split(0, world.rank(), "dp");
  for (int i = 0; i < 3; ++i) dp->all_reduce(kHost, tensor_of(whole), ReduceOp::sum);
  dp->reduce_scatter(kHost, tensor_of(whole), tensor_of(part));
  dp->all_gather(kHost, tensor_of(part), tensor_of(whole));
  std::vector<float> other(part.size());
  for (int shift = 0; shift < dp->size(); ++shift) dp->rotate(kHost, tensor_of(part), tensor_of(other), shift);
  world.broadcast(kHost, tensor_of(whole), 0);
  world.barrier();

  const std::int64_t bytes = 4 * n * p;  // of the whole tensor
  const std::int64_t pass = 4 * n * (p - 1);
  EXPECT_EQ(record->of("dp", "all_reduce").calls, 3);
  EXPECT_EQ(record->of("dp", "all_reduce").bytes, 3 * bytes);
  EXPECT_EQ(record->of("dp", "all_reduce").wire_bytes, 3 * 2 * pass);
  EXPECT_EQ(record->of("dp", "reduce_scatter").bytes, bytes);
  EXPECT_EQ(record->of("dp", "reduce_scatter").wire_bytes, pass);
  EXPECT_EQ(record->of("dp", "all_gather").bytes, bytes);
  EXPECT_EQ(record->of("dp", "all_gather").wire_bytes, pass);
  EXPECT_EQ(record->of("dp", "rotate").wire_bytes, pass) << "all shifts are an all-gather; the copy to itself is free";
  EXPECT_EQ(record->of("world", "broadcast").calls, 1);
  EXPECT_EQ(record->of("world", "barrier").calls, 1);
  EXPECT_EQ(record->of("world", "all_reduce").calls, 0);
}

TEST(Disagreement, AWrongCountNamesBothCountsAndBothRanks) {
  if (test_world().size() == 1) GTEST_SKIP() << "one rank agrees with itself";
  // Few elements, around the size that travels with the first message, and many.
  for (const std::int64_t n : {std::int64_t{5}, std::int64_t{256}, std::int64_t{100000}}) {
    const std::unique_ptr<Communicator> group = new_test_world();
    std::vector<float> data(static_cast<std::size_t>(group->rank() == 1 ? n + 1 : n));
    const std::string message = error_of([&] { group->all_reduce(kHost, tensor_of(data), ReduceOp::sum); });
    expect_contains(message, {"all_reduce number 1 of group 'world'", fmt::format("{} float32 elements", n),
                              fmt::format("{} float32 elements", n + 1), "rank 1 (host",
                              fmt::format("rank {} (host", group->rank() == 1 ? 0 : group->rank())});
  }
}

TEST(Disagreement, AnotherCollectiveTypeOperationOrRoot) {
  if (test_world().size() == 1) GTEST_SKIP() << "one rank agrees with itself";
  std::vector<float> data(300);
  std::vector<double> wide(300);
  const bool odd = test_world().rank() == 1;
  std::unique_ptr<Communicator> group = new_test_world();
  std::string message = error_of([&] {
    if (odd)
      group->barrier();
    else
      group->all_reduce(kHost, tensor_of(data), ReduceOp::sum);
  });
  expect_contains(message, {"barrier of 0", "all_reduce of 300 float32 elements (sum)"});

  group = new_test_world();
  message = error_of([&] { group->all_reduce(kHost, odd ? tensor_of(wide) : tensor_of(data), ReduceOp::sum); });
  expect_contains(message, {"300 float64 elements", "300 float32 elements"});

  group = new_test_world();
  message = error_of([&] { group->all_reduce(kHost, tensor_of(data), odd ? ReduceOp::max : ReduceOp::sum); });
  expect_contains(message, {"(max)", "(sum)"});
}

}  // namespace
}  // namespace trainer
