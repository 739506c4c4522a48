// The main program of tests on several ranks (launched by mpirun.sh). A test fails when it fails on any rank: after
// each test the failures are gathered, rank 0 prints them with the rank, and the first failing test ends the run on all
// ranks, because later collectives might not match any more.
//   --hang-rank N   rank N waits for a debugger; timeouts are off
//   --timeout S     seconds that a collective may wait (default 60); the whole program may run 5 times as long
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "launch/bootstrap.h"
#include "parallel/host_exchange.h"
#include "tests/support/mpi_world.h"

namespace trainer {
namespace {

struct Options {
  int hang_rank = -1;
  double timeout_seconds = 60;
};

/// gtest runs tests without arguments, so the main program leaves here what they need.
struct TestJob {
  Bootstrap* bootstrap = nullptr;
  Communicator* world = nullptr;
};
TestJob& test_job() {
  static TestJob job;
  return job;
}

class GatherFailures final : public testing::EmptyTestEventListener {
 public:
  GatherFailures(std::unique_ptr<Communicator> reports, Bootstrap& bootstrap)
      : reports_(std::move(reports)), bootstrap_(bootstrap) {}

  void OnTestStart(const testing::TestInfo& /*info*/) override { failures_.clear(); }

  void OnTestPartResult(const testing::TestPartResult& part) override {
    if (!part.failed()) return;
    const char* file = part.file_name() == nullptr ? "unknown file" : part.file_name();
    failures_ += fmt::format("{}:{}: {}\n", file, part.line_number(), part.summary());
  }

  void OnTestEnd(const testing::TestInfo& info) override {
    const std::string mine = failures_;  // what follows adds failures of its own
    try {
      const std::vector<std::string> all = gather_strings(*reports_, mine);
      for (int r = 0; r < reports_->size(); ++r) {
        const std::string& text = all[static_cast<std::size_t>(r)];
        if (r != reports_->rank() && !text.empty()) ADD_FAILURE() << "on rank " << r << ":\n" << text;
      }
    } catch (const Error& e) {
      bootstrap_.fail_job(fmt::format("in {}.{}: {}\n{}", info.test_suite_name(), info.name(), e.what(), mine),
                          ExitCode::other);
    }
  }

 private:
  std::unique_ptr<Communicator> reports_;
  Bootstrap& bootstrap_;
  std::string failures_;
};

Options parse_options(int argc, char** argv) {
  Options options;
  for (int i = 1; i + 1 < argc; ++i) {
    const std::string_view name = argv[i];
    if (name == "--hang-rank") options.hang_rank = std::atoi(argv[i + 1]);
    if (name == "--timeout") options.timeout_seconds = std::atof(argv[i + 1]);
  }
  if (options.hang_rank >= 0) options.timeout_seconds = 1e9;
  return options;
}

void wait_for_debugger() {
  volatile bool hang = true;
  std::fprintf(stderr, "waiting for a debugger: gdb -p %d, then: up; set var hang = 0; continue\n",
               static_cast<int>(getpid()));
  while (hang) sleep(1);
}

/// A rank that computes for ever is in no collective that could time out.
void start_watchdog(double seconds) {
  std::signal(SIGALRM, [](int) {
    constexpr std::string_view kMessage = "the test's time is up: ended by its watchdog\n";
    [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, kMessage.data(), kMessage.size());
    std::_Exit(static_cast<int>(ExitCode::other));
  });
  alarm(static_cast<unsigned>(seconds));
}

ExitCode run_tests(Bootstrap& bootstrap, const Options& options) {
  if (options.hang_rank == bootstrap.rank()) wait_for_debugger();
  if (options.hang_rank < 0) start_watchdog(5 * options.timeout_seconds);
  const std::unique_ptr<Communicator> world = bootstrap.world({.timeout_seconds = options.timeout_seconds});
  test_job() = {&bootstrap, world.get()};
  testing::TestEventListeners& listeners = testing::UnitTest::GetInstance()->listeners();
  if (bootstrap.rank() != 0) delete listeners.Release(listeners.default_result_printer());
  auto* gather_failures = new GatherFailures(world->split(0, world->rank(), "reports"), bootstrap);
  listeners.Append(gather_failures);
  GTEST_FLAG_SET(fail_fast, true);
  const bool passed = RUN_ALL_TESTS() == 0;
  delete listeners.Release(gather_failures);
  test_job() = {};
  return passed ? ExitCode::ok : ExitCode::other;
}

}  // namespace

Communicator& test_world() {
  TRAINER_CHECK(test_job().world != nullptr, "test_world() outside of a test");
  return *test_job().world;
}

std::unique_ptr<Communicator> new_test_world(const CommunicatorOptions& options) {
  TRAINER_CHECK(test_job().bootstrap != nullptr, "new_test_world() outside of a test");
  return test_job().bootstrap->world(options);
}

std::unique_ptr<Communicator> new_test_world(const std::shared_ptr<JobRanks>& ranks,
                                             const CommunicatorOptions& options) {
  TRAINER_CHECK(test_job().bootstrap != nullptr, "new_test_world() outside of a test");
  TRAINER_CHECK(test_job().bootstrap->job() != nullptr, "one process alone knows no ranks: start it with a launcher");
  return test_job().bootstrap->job()->world(options, ranks);
}

std::unique_ptr<Communicator> new_test_world(Device device, const CommunicatorOptions& options) {
  TRAINER_CHECK(test_job().bootstrap != nullptr, "new_test_world() outside of a test");
  return test_job().bootstrap->world(device, options);
}

LocalPlace test_local_place() {
  TRAINER_CHECK(test_job().bootstrap != nullptr, "test_local_place() outside of a test");
  return {test_job().bootstrap->local_rank(), test_job().bootstrap->local_size()};
}

}  // namespace trainer

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  const trainer::Options options = trainer::parse_options(argc, argv);
  return trainer::run_reporting_errors(
      argc, argv, [&](trainer::Bootstrap& bootstrap) { return trainer::run_tests(bootstrap, options); });
}
