// Waiting for a rank ends: at the timeout, some time after a stop signal, and when another rank has failed.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "tests/parallel/element_types.h"
#include "tests/parallel/errors.h"
#include "tests/support/mpi_world.h"

namespace trainer {
namespace {

/// The error on this rank of an all-reduce to which rank 1 comes `seconds` late.
std::string error_when_late(Communicator& group, double seconds) {
  if (group.rank() == 1) std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  std::vector<double> data(3);
  std::string message = error_of([&] { group.all_reduce({}, tensor_of(data), ReduceOp::sum); });
  test_world().barrier();
  return message;
}

/// The ranks as if each were on a host of its own, where the others cannot be watched.
std::shared_ptr<JobRanks> on_many_hosts(std::int32_t* failure) {
  RankProcess mine = this_process();
  mine.node = test_world().rank();
  std::vector<RankProcess> all(static_cast<std::size_t>(test_world().size()));
  test_world().all_gather({}, tensor_over(&mine, Dtype::u8, 1, sizeof mine),
                          tensor_over(all.data(), Dtype::u8, test_world().size(), sizeof mine));
  return std::make_shared<JobRanks>(all, test_world().rank(), NodeMemory{failure});
}

TEST(Waiting, TheTimeoutNamesTheCollectiveAndTheRankThatDidNotCome) {
  if (test_world().size() == 1) GTEST_SKIP() << "one rank waits for nobody";
  const std::unique_ptr<Communicator> group = new_test_world({.timeout_seconds = 0.5});
  const std::unique_ptr<Communicator> dp = group->split(0, group->rank(), "dp");
  const std::string message = error_when_late(*dp, 1.5);
  if (dp->rank() != 1)
    expect_contains(message, {"all_reduce number 1 of group 'dp' (24 bytes)", "for rank 1 (host",
                              "longer than comm.timeout_seconds 0.5"});
}

TEST(Waiting, AfterAStopSignalRanksThatCannotBeWatchedAreWaitedForAShortTimeOnly) {
  if (test_world().size() == 1) GTEST_SKIP() << "one rank waits for nobody";
  const std::atomic<bool> stop{true};
  std::int32_t failure = 0;
  const std::unique_ptr<Communicator> group =
      new_test_world(on_many_hosts(&failure), {.timeout_seconds = 60, .stop = &stop, .stop_grace_seconds = 0.5});
  const std::string message = error_when_late(*group, 1.5);
  if (group->rank() != 1) expect_contains(message, {"for rank 1 (host", "after a stop signal"});
}

TEST(Waiting, AfterAStopSignalLivingRanksAreWaitedFor) {
  const std::atomic<bool> stop{true};
  const std::unique_ptr<Communicator> group =
      new_test_world({.timeout_seconds = 60, .stop = &stop, .stop_grace_seconds = 0.2});
  EXPECT_EQ(error_when_late(*group, 1.0), "");
}

TEST(Waiting, EndsWhenAnotherRankHasFailed) {
  if (test_world().size() == 1) GTEST_SKIP() << "one rank waits for nobody";
  std::int32_t failure = 0;
  const std::shared_ptr<JobRanks> ranks = on_many_hosts(&failure);
  const std::unique_ptr<Communicator> group = new_test_world(ranks, {.timeout_seconds = 60});
  if (group->rank() != 1) {
    EXPECT_TRUE(ranks->claim_failure());
  }
  const std::string message = error_when_late(*group, 0.5);
  if (group->rank() != 1) expect_contains(message, {"rank 1 (host", "another rank has failed"});
}

TEST(Waiting, TheLastOperationIsKnown) {
  std::int32_t failure = 0;
  const std::shared_ptr<JobRanks> ranks = on_many_hosts(&failure);
  EXPECT_EQ(ranks->last_operation_text(), "none");
  const std::unique_ptr<Communicator> group = new_test_world(ranks, {.timeout_seconds = 60});
  std::vector<double> data(3);
  group->all_reduce({}, tensor_of(data), ReduceOp::sum);
  group->broadcast({}, tensor_of(data), 0);
  EXPECT_EQ(ranks->last_operation_text(), "broadcast number 2 of group 'world' (24 bytes)");
}

}  // namespace
}  // namespace trainer
