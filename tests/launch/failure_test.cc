// Whatever ends one rank ends the whole job: soon, with a cause that names rank and host, said once, with nothing left.
#include <fmt/format.h>

#include <algorithm>

#include "core/runtime/environment.h"
#include "tests/launch/run_folder.h"
#include "tests/support/errors.h"

namespace trainer::launch_test {
namespace {

constexpr double kTimeout = 3;  // comm.timeout_seconds

struct Failure {
  std::string fault;
  std::vector<int> exit_codes;
  double seconds;
  std::vector<std::string> said;
};

std::vector<Failure> failures() {
  return {
      {"rank=1,step=5,site=step,action=kill", {7, 137}, 15, {"): step 5: ", "rank 1 (host ", "of group '"}},
      {"rank=1,step=5,site=gradients,action=kill", {7, 137}, 15, {"rank 1 (host ", "of group '"}},
      {"rank=1,step=5,site=step,action=stop",
       {7, 137},
       kTimeout + 10,
       {"): step 5: ", "rank 1 (host ", "stopped", "of group '"}},
      {"rank=1,step=5,site=step,action=sleep:40",
       {7},
       kTimeout + 10,
       {"): step 5: ", "rank 1 (host ", "longer than comm.timeout_seconds", "of group '"}},
      {"rank=1,step=5,site=step,action=exit:1", {1, 7}, 15, {"rank 1 (host ", "has ended", "of group '"}},
      {"rank=1,step=5,site=optimizer,action=exit:0", {1, 7}, 15, {"rank 1 (host ", "has ended"}},
      {"rank=1,step=5,site=forward,action=throw",
       {1},
       15,
       {"rank 1 of ", "): step 5: fault planned for rank 1 step 5", "last collective: "}},
      {"rank=1,step=5,site=collective,action=count", {7}, 15, {"rank 1 (host ", "disagree"}},
      {"rank=1,step=5,site=save.write,action=kill", {7, 137}, 15, {"rank 1 (host "}},
      {"rank=1,step=5,site=save.write,action=throw", {1, 4}, 15, {"fault planned for rank 1 step 5"}},
      {"rank=1,site=load,action=kill", {7, 137}, 15, {"rank 1 (host "}},
  };
}

void expect_job_ends(int ranks, const std::vector<std::string>& layout, Launcher launcher = Launcher::script) {
  std::vector<std::string> sets = layout;
  sets.insert(sets.end(), {fmt::format("comm.timeout_seconds={}", kTimeout), "checkpoint.save_interval=5"});
  for (const Failure& failure : failures()) {
    SCOPED_TRACE(fmt::format("{} with {} ranks", failure.fault, ranks));
    const RunFolder folder;
    const Result result = folder.run({.ranks = ranks, .sets = sets, .fault = failure.fault, .launcher = launcher}, 40);
    EXPECT_NE(std::find(failure.exit_codes.begin(), failure.exit_codes.end(), result.exit_code),
              failure.exit_codes.end())
        << "exit code " << result.exit_code;
    EXPECT_LT(result.seconds, failure.seconds);
    EXPECT_TRUE(mentions(result.err, failure.said));
    EXPECT_TRUE(mentions(result.err, {host_name()}));
    EXPECT_EQ(count_of("\n" + result.err, "\ntrainer: "), 1) << result.err;
    // An interrupted save leaves nothing that could be taken for a checkpoint, and the run can go on.
    const bool reached = failure.fault.find("site=load") == std::string::npos;
    EXPECT_EQ(folder.metrics().empty(), !reached);
    EXPECT_TRUE(folder.checkpoints().empty());
  }
}

TEST(Failure, OfOneOfTwoEndsTheJob) {
  expect_job_ends(2, {});
}

TEST(Failure, OfOneOfFourEndsTheJob) {
  expect_job_ends(4, {"parallelism.tensor_parallel_size=2", "parallelism.zero_stage=1"});
}

TEST(Failure, OfOneOfTwoThatMetInAFolderEndsTheJob) {
  expect_job_ends(2, {"parallelism.zero_stage=2"}, Launcher::none);
}

/// What a rank logged until it was killed can be read.
TEST(Failure, LosesNoLogLine) {
  const RunFolder folder;
  folder.run({.ranks = 2, .fault = "rank=1,step=5,site=step,action=kill", .print = true});
  EXPECT_EQ(folder.hashes(1).size(), 4u);
}

/// Whoever plans a fault waits for it.
TEST(Failure, ThatNeverComesIsTold) {
  const RunFolder folder;
  const Result refused = folder.expect_exit(2, {.ranks = 2, .fault = "rank=2,site=step,action=kill"});
  EXPECT_TRUE(
      mentions(refused.err, {"'rank=2,site=step,action=kill': this job has 2 ranks; right would be a rank from 0"}));
  EXPECT_EQ(count_of("\n" + refused.err, "\ntrainer: "), 1) << refused.err;
  const Result told =
      folder.expect_exit(0, {.ranks = 2,
                             .fault = "rank=1,step=3,site=step,action=sleep:0;rank=1,step=21,site=step,action=kill;"
                                      "site=evaluate,action=throw"});
  EXPECT_TRUE(
      mentions(told.out, {"TRAINER_FAULT: 'rank=1,step=21,site=step,action=kill' has not happened in steps 1 to 20",
                          "'site=evaluate,action=throw' has not"}));
  EXPECT_EQ(count_of(told.out, "has not happened"), 2) << told.out;
}

/// A limit on the size of files stands for a full disk.
TEST(Failure, OfMetricsCostsNoWork) {
  const RunFolder folder;
  Job job(folder.path(),
          fmt::format("(ulimit -S -f 8; exec {} --config config.yaml --set train.train_steps=100 --set "
                      "checkpoint.save_at_end=false) | cat; exit ${{PIPESTATUS[0]}}",
                      TRAINER_BINARY),
          {});
  const Result result = job.wait();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(mentions(result.out, {"done: 100 steps"}));
  EXPECT_EQ(count_of(result.err, "cannot write metrics to "), 1) << result.err;
  EXPECT_EQ(count_of(result.err, "metrics are lost"), 1) << result.err;
  EXPECT_EQ(count_of(result.err, "cannot write to the log file"), 1) << result.err;
  EXPECT_EQ(lines_of(result.err).size(), 3u) << result.err;
  const std::vector<double> steps = folder.metric("step");
  EXPECT_GT(steps.size(), 10u);
  EXPECT_LT(steps.size(), 100u);
}

}  // namespace
}  // namespace trainer::launch_test
