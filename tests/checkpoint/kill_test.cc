// SIGKILL at any moment of a save leaves a usable checkpoint, with no hand work.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <thread>

#include "core/checkpoint/save_folder.h"
#include "tests/checkpoint/support.h"
#include "tests/support/files.h"

namespace trainer::checkpoint_test {
namespace {

/// Runs `child`, which does not end, in a process of its own and kills it `delay` after its begin, or after `ready`.
void run_and_kill(const std::function<void()>& child, const std::function<bool()>& ready,
                  std::chrono::nanoseconds delay) {
  const pid_t pid = fork();
  if (pid == 0) {
    child();
    _exit(0);
  }
  while (!ready()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  std::this_thread::sleep_for(delay);
  kill(pid, SIGKILL);
  int status = 0;
  EXPECT_EQ(waitpid(pid, &status, 0), pid);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << "the child ended by itself";
}

/// Runs `child`, which kills itself.
void run_killed(const std::function<void()>& child) {
  const pid_t pid = fork();
  if (pid == 0) {
    child();
    _exit(0);
  }
  int status = 0;
  EXPECT_EQ(waitpid(pid, &status, 0), pid);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << "the child was not killed";
}

/// The newest usable checkpoint is sound and of step `first` or later.
void expect_usable(const std::string& folder, std::int64_t first) {
  std::vector<std::string> warnings;
  const auto info = find_auto(folder, &warnings);
  ASSERT_TRUE(info.has_value());
  EXPECT_TRUE(warnings.empty()) << warnings[0];
  EXPECT_GE(info->manifest.step, first);
  expect_content(*info);
}

TEST(Kill, AtEverySite) {
  for (const char* site : {"save.begin", "save.write", "save.publish"}) {
    const TemporaryFolder folder;
    save_step(folder.path(), 1);
    run_killed([&] {
      SelfCommunicator world("world");
      Model model = Model::small();
      model.fill(2);
      save_checkpoint(request_for(folder.path(), 2, model.whole()), world,
                      FaultPlan::parse(std::string("site=") + site + ",action=kill"));
    });
    expect_usable(folder.path(), 1);
    EXPECT_EQ(find_auto(folder.path())->manifest.step, 1);
    save_step(folder.path(), 2);
    EXPECT_EQ(names_in(folder.path()), (std::vector<std::string>{"latest", "step_00000001", "step_00000002"})) << site;
    expect_usable(folder.path(), 2);
  }
}

TEST(Kill, AtEverySubPiece) {
  const TemporaryFolder folder;
  save_step(folder.path(), 1);
  for (int read = 1; read <= 8; ++read) {
    run_killed([&] {
      SelfCommunicator world("world");
      Model model = Model::small();
      model.on_read = [&] {
        if (model.reads == read) std::raise(SIGKILL);
      };
      save_checkpoint(request_for(folder.path(), 2, model.whole()), world, FaultPlan());
    });
    expect_usable(folder.path(), 1);
    EXPECT_EQ(find_auto(folder.path())->manifest.step, 1);
  }
  save_step(folder.path(), 2);
  EXPECT_EQ(names_in(folder.path()), (std::vector<std::string>{"latest", "step_00000001", "step_00000002"}));
}

TEST(Kill, AtRandomMoments) {
  // The child saves new steps, saves each of them again, and prunes, so that kills fall into every kind of rename.
  const TemporaryFolder folder;
  Random random(11);
  std::int64_t step = 0;
  std::chrono::nanoseconds slowest_save{0};
  while (step < 5) {
    const auto begin = std::chrono::steady_clock::now();
    save_step(folder.path(), ++step);
    slowest_save = std::max<std::chrono::nanoseconds>(slowest_save, std::chrono::steady_clock::now() - begin);
  }
  for (int trial = 0; trial < 30; ++trial) {
    // Every other child has saved a step before it is killed, however slow the disk is.
    run_and_kill(
        [&] {
          for (std::int64_t next = step;; ++next) {
            save_step(folder.path(), next, 2);
            save_step(folder.path(), next, 2);
          }
        },
        [&] { return trial % 2 == 0 || checkpoint::read_latest(folder.path()) > checkpoint::step_name(step); },
        slowest_save * random.between(0, 300) / 100);
    expect_usable(folder.path(), step);
    step = find_auto(folder.path())->manifest.step;
  }
  EXPECT_GE(step, 5 + 15) << "children that had saved lost it";
  save_step(folder.path(), step + 1, 2);
  EXPECT_EQ(names_in(folder.path()).size(), 3u);
}

}  // namespace
}  // namespace trainer::checkpoint_test
