// Signals and kills: a job that is asked to stop saves and says so, one that is killed goes on from its last
// checkpoint.
#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <iterator>
#include <random>

#include "tests/launch/run_folder.h"
#include "tests/support/errors.h"
#include "tests/support/files.h"

namespace trainer::launch_test {
namespace {

/// A run whose learning rate, and so whose course, does not depend on where it ends.
std::vector<std::string> endless(std::int64_t steps) {
  return {fmt::format("train.train_steps={}", steps), "lr_scheduler.name=constant"};
}
constexpr const char* kSlowSteps = "site=step,action=sleep:0.02";

std::int64_t steps_done(const RunFolder& folder) {
  return count_of(read_file(folder / "run/metrics.jsonl"), "\n");
}

/// Waits until the job has done `steps` steps.
void await_steps(const RunFolder& folder, std::int64_t steps) {
  ASSERT_TRUE(wait_until([&] { return steps_done(folder) >= steps; }, 30)) << "the job does not move";
}

struct Ask {
  std::string name;
  std::function<void(const Job&)> send;
  Launcher launcher = Launcher::script;
};

std::vector<Ask> ways_to_ask() {
  return {{"SIGUSR1 to mpirun", [](const Job& job) { kill(job.pid(), SIGUSR1); }, Launcher::mpirun},
          {"SIGTERM to rank 1 of ranks that met in a folder", [](const Job& job) { kill(job.ranks().at(1), SIGTERM); },
           Launcher::none},
          {"SIGUSR1 to rank 1", [](const Job& job) { kill(job.ranks().at(1), SIGUSR1); }},
          {"SIGTERM to rank 0", [](const Job& job) { kill(job.ranks().at(0), SIGTERM); }},
          {"SIGUSR1 to launch/mpirun.sh", [](const Job& job) { kill(job.pid(), SIGUSR1); }},
          {"SIGTERM to launch/mpirun.sh", [](const Job& job) { kill(job.pid(), SIGTERM); }},
          {"SIGINT to launch/mpirun.sh", [](const Job& job) { kill(job.pid(), SIGINT); }},
          {"SIGHUP to launch/mpirun.sh", [](const Job& job) { kill(job.pid(), SIGHUP); }}};
}

TEST(Signals, SaveOneCommonStepAndGoOn) {
  for (const Ask& ask : ways_to_ask()) {
    SCOPED_TRACE(ask.name);
    const RunFolder folder;
    const std::unique_ptr<Job> job =
        folder.start({.ranks = 2, .sets = endless(1000), .fault = kSlowSteps, .print = true, .launcher = ask.launcher});
    await_steps(folder, 4);
    ask.send(*job);
    const Result stopped = job->wait(20);
    EXPECT_EQ(stopped.exit_code, 75) << stopped.out << stopped.err;
    EXPECT_TRUE(job->is_gone());
    const std::int64_t last = folder.hashes(0).rbegin()->first;
    EXPECT_EQ(folder.hashes(1).rbegin()->first, last) << "the ranks stopped after different steps";
    EXPECT_EQ(folder.checkpoints(), std::vector<std::string>{fmt::format("step_{:08}", last)});
    EXPECT_TRUE(mentions(stopped.out, {fmt::format("stopped by a signal after step {}", last)}));

    const Result resumed = folder.expect_exit(0, {.ranks = 2, .sets = endless(last + 5), .print = true});
    EXPECT_TRUE(mentions(resumed.out, {fmt::format("after step {}", last)}));
    folder.expect_exit(0, {.ranks = 2, .sets = endless(last + 5), .print = true, .folder = "unbroken"});
    for (int rank = 0; rank < 2; ++rank) EXPECT_EQ(folder.hashes(rank), folder.hashes(rank, "unbroken"));
  }
}

TEST(Signals, StopASingleProcess) {
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) {
    SCOPED_TRACE(signal);
    const RunFolder folder;
    const std::unique_ptr<Job> job = folder.start({.sets = endless(1000), .fault = kSlowSteps});
    await_steps(folder, 3);
    kill(job->pid(), signal);
    EXPECT_EQ(job->wait(20).exit_code, 75);
    EXPECT_EQ(folder.checkpoints().size(), 1u);
  }
}

/// `trainer ... | tee log`, and tee ends.
TEST(Signals, AConsoleThatEndsEndsNoRun) {
  const RunFolder folder;
  const std::string trainer =
      fmt::format("OMP_NUM_THREADS=1 {} --config config.yaml --set train.output_dir=run", TRAINER_BINARY);
  Job job(folder.path(), fmt::format("set -o pipefail; {} | head -n 1", trainer), {{"TRAINER_FAULT", kSlowSteps}});
  const Result result = job.wait(30);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(folder.metrics().size(), 20u);
}

TEST(Signals, SaveNothingWhenToldSo) {
  const RunFolder folder;
  std::vector<std::string> sets = endless(1000);
  sets.emplace_back("checkpoint.save_on_signal=false");
  const std::unique_ptr<Job> job = folder.start({.ranks = 2, .sets = sets, .fault = kSlowSteps});
  await_steps(folder, 3);
  kill(job->pid(), SIGUSR1);
  EXPECT_EQ(job->wait(20).exit_code, 75);
  EXPECT_TRUE(folder.checkpoints().empty());
}

TEST(Signals, ASecondOneEndsTheJobAtOnce) {
  for (const int ranks : {1, 2}) {
    const RunFolder folder;
    const std::unique_ptr<Job> job =
        folder.start({.ranks = ranks, .sets = endless(1000), .fault = "step=4,site=step,action=sleep:30"});
    await_steps(folder, 3);
    sleep_seconds(0.1);
    kill(job->pid(), SIGTERM);
    sleep_seconds(0.5);
    EXPECT_FALSE(job->ranks().empty()) << "the first one waits for the step";
    const double asked = monotonic_seconds();
    kill(job->pid(), SIGTERM);
    const Result result = job->wait(20);
    EXPECT_FALSE(result.timed_out);
    EXPECT_EQ(result.exit_code, 1) << ranks << " ranks\n" << result.out << result.err;
    EXPECT_LT(monotonic_seconds() - asked, 8);
    EXPECT_TRUE(folder.checkpoints().empty());
    EXPECT_TRUE(job->is_gone());
  }
}

// ---- SIGKILL -----------------------------------------------------------------------------------

/// What SIGKILL hits.
void kill_some(const Job& job, int what) {
  const auto ranks = job.ranks();
  switch (ranks.empty() ? 0 : what % 3) {
    case 0:  // a machine goes down
      job.kill_all();
      break;
    case 1:  // all ranks
      for (const auto& [rank, pid] : ranks) kill(pid, SIGKILL);
      break;
    default:  // one rank: the others must end by themselves
      kill(std::next(ranks.begin(), what / 3 % static_cast<int>(ranks.size()))->second, SIGKILL);
  }
}

int number_of_kills() {
  const char* text = std::getenv("TRAINER_TEST_KILLS");  // NOLINT(concurrency-mt-unsafe): one thread
  return text == nullptr ? 10 : std::atoi(text);
}

/// Of the published checkpoints; 0 when there is none.
std::int64_t newest_step(const RunFolder& folder) {
  const auto names = folder.checkpoints();
  return names.empty() ? 0 : std::stol(names.back().substr(std::string("step_").size()));
}

/// Every restart goes on from the newest step that was saved, with no hand work, and the end is that of a run that was
/// never disturbed.
TEST(Kills, AtRandomMomentsOfARunThatSavesEveryStep) {
  const RunFolder folder;
  std::mt19937 random(20);
  std::vector<std::string> sets = endless(100000);
  sets.insert(sets.end(), {"checkpoint.save_interval=1", "checkpoint.keep_last=3"});
  std::int64_t newest = 0;
  for (int attempt = 0; attempt < number_of_kills(); ++attempt) {
    SCOPED_TRACE(fmt::format("attempt {}", attempt));
    const std::unique_ptr<Job> job = folder.start({.ranks = 2, .sets = sets});
    // As a rule some steps into the run, among saves; some kills fall into the start.
    const auto moved = [&] { return newest_step(folder) > newest; };
    if (attempt % 5 != 4 && !wait_until(moved, 30)) FAIL() << "the job does not move\n" << job->wait(0).out;
    sleep_seconds(std::uniform_real_distribution<>(0, 0.3)(random));
    kill_some(*job, static_cast<int>(random() % 6));
    const Result killed = job->wait(30);
    EXPECT_FALSE(killed.timed_out);
    EXPECT_NE(killed.exit_code, 0);
    EXPECT_TRUE(job->is_gone(10)) << "processes are left";
    EXPECT_EQ(count_of(killed.out, " is damaged") + count_of(killed.out, "not usable"), 0) << killed.out;
    const std::int64_t last = newest_step(folder);
    EXPECT_GE(last, newest) << "a saved step was lost";
    newest = last;
  }
  sets[0] = fmt::format("train.train_steps={}", newest + 3);
  const Result finished = folder.expect_exit(0, {.ranks = 2, .sets = sets, .print = true});
  EXPECT_TRUE(mentions(finished.out, {fmt::format("after step {}", newest)}));
  folder.expect_exit(0, {.ranks = 2, .sets = endless(newest + 3), .print = true, .folder = "unbroken"}, 120);
  for (int rank = 0; rank < 2; ++rank)
    EXPECT_EQ(folder.hashes(rank).at(newest + 3), folder.hashes(rank, "unbroken").at(newest + 3));
  EXPECT_EQ(folder.metric("step"), folder.metric("step", "unbroken"));
  EXPECT_EQ(folder.metric("loss"), folder.metric("loss", "unbroken"));
}

}  // namespace
}  // namespace trainer::launch_test
