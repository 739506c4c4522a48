// Ranks that meet in a folder, without a launcher: the same run as under mpirun, and what can go wrong on the way.
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>

#include "tests/launch/run_folder.h"
#include "tests/support/errors.h"

namespace trainer::launch_test {
namespace {

std::vector<std::string> with(std::vector<std::string> sets, const std::vector<std::string>& more) {
  sets.insert(sets.end(), more.begin(), more.end());
  return sets;
}

/// Float64, so that a real difference is not taken for rounding.
TEST(Rendezvous, EveryLayoutIsTheRunOfOneProcess) {
  const RunFolder folder;
  const std::vector<std::string> sets = {"precision.dtype=float64", "train.train_steps=5"};
  folder.expect_exit(0, {.sets = sets, .folder = "one"});
  const std::vector<Start> layouts = {
      {.ranks = 2, .folder = "dp2"},
      {.ranks = 2,
       .sets = {"parallelism.tensor_parallel_size=2", "parallelism.sequence_parallel=true"},
       .folder = "tp2"},
      {.ranks = 2, .sets = {"parallelism.zero_stage=3"}, .folder = "zero3"},
      {.ranks = 4,
       .sets = {"parallelism.tensor_parallel_size=2", "parallelism.sequence_parallel=true", "parallelism.zero_stage=2"},
       .folder = "all"}};
  for (Start start : layouts) {
    SCOPED_TRACE(start.folder);
    start.sets = with(start.sets, sets);
    start.launcher = Launcher::none;
    folder.expect_exit(0, start);
    EXPECT_TRUE(near(folder.metric("loss", start.folder), folder.metric("loss", "one"), 1e-10));
    EXPECT_TRUE(near(folder.metric("grad_norm", start.folder), folder.metric("grad_norm", "one"), 1e-10));
  }
}

/// The order of additions is that of the ranks, whatever carries them. Each goes on from the other's checkpoint.
TEST(Rendezvous, HasTheBitsOfMpi) {
  const RunFolder folder;
  const std::vector<std::string> sets = {"parallelism.zero_stage=1", "lr_scheduler.name=constant"};
  const auto go_on = [&](const std::string& run, Launcher launcher, int steps) {
    folder.expect_exit(0, {.ranks = 2,
                           .sets = with(sets, {fmt::format("train.train_steps={}", steps)}),
                           .print = true,
                           .launcher = launcher,
                           .folder = run});
  };
  go_on("tcp", Launcher::none, 8);
  if (std::string(TRAINER_LAUNCHERS).find("mpirun") == std::string::npos) GTEST_SKIP() << "this build has no MPI";
  go_on("mpi", Launcher::script, 4);
  go_on("mpi", Launcher::none, 6);
  go_on("mpi", Launcher::script, 8);
  for (int rank = 0; rank < 2; ++rank) EXPECT_EQ(folder.hashes(rank, "tcp"), folder.hashes(rank, "mpi"));
}

// ---- What can go wrong -------------------------------------------------------------------------

/// One rank of a job that meets in the folder `meet`.
struct OneRank {
  std::string rank, size;
  Environment more;
};

std::unique_ptr<Job> start_rank(const RunFolder& folder, const OneRank& how) {
  std::filesystem::create_directories(folder / "meet");
  Environment environment{{"TRAINER_RENDEZVOUS", folder / "meet"},
                          {"TRAINER_RENDEZVOUS_TIMEOUT", "3"},
                          {"TRAINER_RANK", how.rank},
                          {"TRAINER_WORLD_SIZE", how.size},
                          {"OMP_NUM_THREADS", "1"}};
  for (const auto& [name, value] : how.more) environment[name] = value;
  return std::make_unique<Job>(folder.path(),
                               fmt::format("exec {} --config config.yaml --set train.train_steps=2", TRAINER_BINARY),
                               environment);
}

void expect_refusal(const Result& result, int exit_code, const std::vector<std::string>& said) {
  EXPECT_EQ(result.exit_code, exit_code) << result.err;
  EXPECT_TRUE(mentions(result.err, said));
  EXPECT_EQ(count_of("\n" + result.err, "\ntrainer: "), 1) << result.err;
  EXPECT_LT(result.seconds, 15);
}

bool meeting_place_is_empty(const RunFolder& folder) {
  return std::filesystem::is_empty(folder / "meet");
}

TEST(Rendezvous, NamesTheRanksThatDoNotCome) {
  const RunFolder folder;
  const auto rank0 = start_rank(folder, {"0", "4"}), rank2 = start_rank(folder, {"2", "4"});
  expect_refusal(rank0->wait(), 7, {"ranks 1, 3 of 4 have not come within 3 s", "meet/job.rendezvous"});
  expect_refusal(rank2->wait(), 7, {"rank 0 has given up", "ranks 1, 3 of 4"});
  EXPECT_TRUE(meeting_place_is_empty(folder));
  expect_refusal(start_rank(folder, {"1", "2"})->wait(), 7,
                 {"rank 1 of 2 (host ", "has not found rank 0 within 3 s", "no such file"});
}

TEST(Rendezvous, SaysForWhomItWaits) {
  const RunFolder folder;
  const Environment patient{{"TRAINER_RENDEZVOUS_TIMEOUT", "7"}};
  const auto rank0 = start_rank(folder, {"0", "8", patient}), rank2 = start_rank(folder, {"2", "8", patient});
  const Result given_up = rank0->wait();
  EXPECT_EQ(given_up.exit_code, 7);
  EXPECT_TRUE(mentions(given_up.err, {"trainer: rank 0 (host ", ") waits for ranks 1, 3-7 of 8 through '",
                                      "meet/job.rendezvous', 7 s at most", "ranks 1, 3-7 of 8 have not come"}));
  EXPECT_EQ(count_of(given_up.err, "waits for"), 1) << given_up.err;
  EXPECT_EQ(count_of(rank2->wait().err, "looks for"), 0) << "it has found rank 0";
}

TEST(Rendezvous, RefusesARankThatIsStartedTwice) {
  const RunFolder folder;
  auto rank0 = start_rank(folder, {"0", "3"});
  const auto first = start_rank(folder, {"1", "3"}), second = start_rank(folder, {"1", "3"});
  expect_refusal(rank0->wait(), 2,
                 {"rank 1 was started twice: host ", std::to_string(first->pid()), std::to_string(second->pid())});
  expect_refusal(first->wait(), 2, {"rank 1 was started twice"});
  expect_refusal(second->wait(), 2, {"rank 1 was started twice"});

  rank0 = start_rank(folder, {"0", "2"});
  ASSERT_TRUE(wait_until([&] { return !meeting_place_is_empty(folder); }, 10));
  expect_refusal(start_rank(folder, {"0", "2"})->wait(), 2,
                 {"rank 0 was started twice", fmt::format("process {}", rank0->pid()), "TRAINER_JOB_ID"});
  // A job of its own may meet in the same folder meanwhile.
  const OneRank other{"0", "2", {{"TRAINER_JOB_ID", "other"}}};
  const auto other0 = start_rank(folder, other);
  expect_refusal(other0->wait(), 7, {"rank 1 of 2 has not come"});
}

TEST(Rendezvous, RefusesSizesThatDiffer) {
  const RunFolder folder;
  const auto rank0 = start_rank(folder, {"0", "2"}), rank1 = start_rank(folder, {"1", "3"});
  for (const auto& job : {rank0.get(), rank1.get()})
    expect_refusal(job->wait(), 2, {"rank 1 (host ", "as one of 3 ranks", "as one of 2"});
}

TEST(Rendezvous, RefusesPlacesAndNumbersThatMakeNoSense) {
  const RunFolder folder;
  const auto refused = [&](const OneRank& how, const std::vector<std::string>& said) {
    expect_refusal(start_rank(folder, how)->wait(), 2, said);
  };
  refused({"0", "2", {{"TRAINER_RENDEZVOUS", folder / "nowhere"}}}, {"nowhere' is no folder on host "});
  refused({"1", "2", {{"TRAINER_RENDEZVOUS", folder / "train.h5"}}}, {"train.h5' is no folder on host "});
  refused({"0", "2", {{"TRAINER_RENDEZVOUS", ""}}}, {"TRAINER_RENDEZVOUS names no folder"});
  refused({"2", "2"}, {"TRAINER_RANK: '2' is not a number from 0 to 1"});
  refused({"one", "2"}, {"TRAINER_RANK: 'one'"});
  refused({"0", ""}, {"TRAINER_RANK is set and TRAINER_WORLD_SIZE is not"});
  refused({"0", "2", {{"TRAINER_JOB_ID", "a/b"}}}, {"TRAINER_JOB_ID: 'a/b'"});
  refused({"0", "2", {{"TRAINER_RENDEZVOUS_TIMEOUT", "nan"}}}, {"'nan' is not a number from 1 to 1000000"});
  refused({"0", "9", {{"TRAINER_RENDEZVOUS_PORT", "65530"}}}, {"65530 leaves no port for each of 9 ranks"});

  const int taken = socket(AF_INET6, SOCK_STREAM, 0);
  sockaddr_in6 address{};
  address.sin6_family = AF_INET6;
  socklen_t length = sizeof address;
  ASSERT_EQ(bind(taken, reinterpret_cast<const sockaddr*>(&address), length), 0);
  ASSERT_EQ(listen(taken, 1), 0);
  getsockname(taken, reinterpret_cast<sockaddr*>(&address), &length);
  const std::string port = std::to_string(ntohs(address.sin6_port));
  refused({"0", "2", {{"TRAINER_RENDEZVOUS_PORT", port}}}, {"cannot listen on port " + port, "in use"});
  close(taken);
}

TEST(Rendezvous, IsNotMisledByWhatAnEarlierStartHasLeft) {
  const RunFolder folder;
  {
    const auto killed = start_rank(folder, {"0", "2"});
    ASSERT_TRUE(wait_until([&] { return std::filesystem::exists(folder / "meet/job.rendezvous"); }, 10));
    killed->kill_all();
    killed->wait();
  }
  EXPECT_FALSE(meeting_place_is_empty(folder));
  const auto alone = start_rank(folder, {"1", "2"});
  expect_refusal(alone->wait(), 7, {"cannot be reached", "refused", "left from an earlier start"});
  const auto rank1 = start_rank(folder, {"1", "2"});
  sleep_seconds(0.5);
  const auto rank0 = start_rank(folder, {"0", "2"});
  const Result done = rank0->wait();
  EXPECT_EQ(done.exit_code, 0) << done.err;
  EXPECT_EQ(rank1->wait().exit_code, 0);
  EXPECT_TRUE(meeting_place_is_empty(folder));
}

TEST(Rendezvous, ARankThatDiesWhileOthersAreAwaitedIsNamed) {
  const RunFolder folder;
  const auto rank0 = start_rank(folder, {"0", "3", {{"TRAINER_RENDEZVOUS_TIMEOUT", "30"}}});
  const auto rank1 = start_rank(folder, {"1", "3"});
  sleep_seconds(1);
  rank1->kill_all();
  expect_refusal(rank0->wait(), 7, {fmt::format("rank 1 (host "), "has ended before all ranks had come"});
}

}  // namespace
}  // namespace trainer::launch_test
