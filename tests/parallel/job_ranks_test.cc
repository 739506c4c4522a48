// The states of other processes as a rank sees them.
#include "parallel/job_ranks.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <string>

namespace trainer {
namespace {

/// A child that does nothing until it is killed.
class Child {
 public:
  Child() : pid_(fork()) {
    if (pid_ == 0)
      for (;;) pause();
  }
  ~Child() { end(); }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  void stop() {
    kill(pid_, SIGSTOP);
    int status = 0;
    waitpid(pid_, &status, WUNTRACED);
  }
  void end() {
    if (pid_ < 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }
  RankProcess process() const {
    std::ifstream file("/proc/" + std::to_string(pid_) + "/stat");
    RankProcess process = this_process();
    process.pid = pid_;
    std::string word;
    for (int field = 1; field < 22; ++field) file >> word;
    file >> process.start_time;
    return process;
  }

 private:
  pid_t pid_;
};

TEST(JobRanks, SeesRanksOfItsHostRunStopAndEnd) {
  Child child;
  std::int32_t failure = 0;
  const JobRanks ranks({this_process(), child.process()}, 0, {&failure});
  EXPECT_EQ(ranks.state(0), ProcessState::running);
  EXPECT_NE(ranks.state(1), ProcessState::unknown);
  EXPECT_NE(ranks.state(1), ProcessState::ended);
  child.stop();
  EXPECT_EQ(ranks.state(1), ProcessState::stopped);
  const std::string host = this_process().host;
  EXPECT_EQ(ranks.describe(1), "rank 1 (host " + host + ", stopped)");
  child.end();
  EXPECT_EQ(ranks.state(1), ProcessState::ended);
  EXPECT_EQ(ranks.describe(1), "rank 1 (host " + host + ", has ended)");
  EXPECT_EQ(ranks.describe(0), "rank 0 (host " + host + ")");
  EXPECT_FALSE(ranks.launcher_ended());
}

TEST(JobRanks, KnowsNothingOfOtherHostsOrOfProcessesThatItCannotSee) {
  RankProcess elsewhere = this_process();
  elsewhere.node = 1;
  RankProcess another = this_process();  // the same number names another process here
  another.start_time += 1;
  std::int32_t failure = 0;
  const JobRanks ranks({this_process(), elsewhere, another}, 0, {&failure});
  EXPECT_EQ(ranks.state(1), ProcessState::unknown);
  EXPECT_EQ(ranks.state(2), ProcessState::unknown);
}

TEST(JobRanks, TakesALostConnectionToAnotherHostForTheEndOfItsRank) {
  RankProcess elsewhere = this_process();
  elsewhere.node = 1;
  std::int32_t failure = 0;
  bool lost = false;
  const JobRanks ranks({this_process(), elsewhere}, 0, {&failure}, [&](int rank) { return rank == 1 && lost; });
  EXPECT_EQ(ranks.state(1), ProcessState::unknown);
  EXPECT_EQ(ranks.culprits(), "");
  lost = true;
  EXPECT_EQ(ranks.state(1), ProcessState::unreachable);
  EXPECT_EQ(ranks.culprits(), fmt::format("; rank 1 (host {}, connection lost)", elsewhere.host));
}

TEST(JobRanks, NamesThoseThatHaveQueuedFewerCollectives) {
  std::int32_t failure = 0;
  std::int64_t queued[2] = {};
  RankProcess other = this_process();
  other.local_rank = 1;
  const JobRanks first({this_process(), other}, 0, {&failure, queued});
  const JobRanks second({this_process(), other}, 1, {&failure, queued});
  first.count_queued();
  first.count_queued();
  second.count_queued();
  EXPECT_EQ(first.late_ranks(), fmt::format("; {} has come to 1 collectives, this rank to 2", first.describe(1)));
  EXPECT_EQ(second.late_ranks(), "");
}

TEST(JobRanks, OneRankOfAHostReportsAFailure) {
  std::int32_t failure = 0;
  JobRanks first({this_process(), this_process()}, 0, {&failure});
  JobRanks second({this_process(), this_process()}, 1, {&failure});
  EXPECT_FALSE(first.failure_claimed());
  EXPECT_TRUE(second.claim_failure(4));
  EXPECT_TRUE(first.failure_claimed());
  EXPECT_EQ(first.claimed_code(), 4);
  EXPECT_FALSE(first.claim_failure());
  EXPECT_FALSE(second.claim_failure());
}

}  // namespace
}  // namespace trainer
