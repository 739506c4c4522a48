#include "launch/bootstrap.h"

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <new>
#include <optional>
#include <string_view>
#include <thread>

#include "launch/launcher.h"
#include "parallel/mpi_job.h"
#include "parallel/self_communicator.h"
#include "parallel/tcp_job.h"

namespace trainer {
namespace {

using namespace std::chrono_literals;

// A timeout or a disagreement is seen on several hosts at the same time, and only ranks of one host can agree who
// reports it. The host of rank 0 goes first; its abort ends the others while they wait. That a rank has ended is seen
// on its own host only.
constexpr auto kOtherHostsWait = 5s;
// A rank that does not report waits to be ended by the launcher, whose exit code is then the reporter's.
constexpr auto kSilentWait = 10s;

void check_size(int size) {
  if (size == 1 && ranks_of_launcher() > 1)
    fail(ExitCode::config,
         "the launcher started {} processes, but MPI sees one: mpirun belongs to another MPI library than the one that "
         "trainer was built with (trainer --version names it); TRAINER_RENDEZVOUS does without MPI",
         ranks_of_launcher());
}

bool seen_on_other_hosts(const JobRanks& ranks, ExitCode code) {
  if (code != ExitCode::communication) return false;
  for (int r = 0; r < ranks.size(); ++r)
    if (ranks.state(r) == ProcessState::ended) return false;
  return true;
}

}  // namespace

Bootstrap::Bootstrap(int* argc, char*** argv) : host_(this_process().host) {
  if (const auto options = rendezvous_options()) {
    job_ = join_tcp_job(*options);
  } else if (launched_by_mpi()) {
    job_ = join_mpi_job(argc, argv);
    check_size(size());
  } else {
    return;
  }
  control_ = job_->world({});
}

void Bootstrap::check_builds() const {
  for (int r = 1; r < size(); ++r) {
    const RankProcess &first = job_->ranks().process(0), &other = job_->ranks().process(r);
    if (std::string_view(other.build) != first.build)
      fail(ExitCode::config, "rank {} (host {}) runs another build of trainer ({}) than rank 0 (host {}, {})", r,
           other.host, other.build, first.host, first.build);
  }
}

std::unique_ptr<Communicator> Bootstrap::world(const CommunicatorOptions& options) {
  // One rank that a launcher has started is as one without: its tensors may lie on a card, whose memory ranks that talk
  // through the host cannot reach.
  if (size() == 1) return std::make_unique<SelfCommunicator>("world");
  control_->barrier();  // making a communicator has no timeout: begin only when all ranks have come
  return job_->world(options);
}

std::unique_ptr<Communicator> Bootstrap::world(Device device, const CommunicatorOptions& options) {
  if (size() == 1 || device.kind == DeviceKind::cpu) return world(options);
  control_->barrier();
  return job_->gpu_world(device, options,
                         [this](const std::string& message) { fail_job(message, ExitCode::communication); });
}

void Bootstrap::finish() {
  if (!job_) return;
  control_->barrier();
  control_.reset();
  job_.reset();
}

void Bootstrap::fail_job(const std::string& message, ExitCode code) {
  const std::int64_t step = this->step();
  const std::string during = step > 0 ? fmt::format("step {}: ", step) : std::string();
  std::string report = fmt::format("trainer: {}{}\n", during, message);
  if (job_) report = fmt::format("trainer: rank {} of {} (host {}): {}{}\n", rank(), size(), host_, during, message);
  // A communication error names its collective itself, and what is wrong with files needs none.
  if (job_ && code == ExitCode::other) report += fmt::format("  last collective: {}\n", last_operation());
  if (job_) {
    JobRanks& ranks = job_->ranks();
    const bool beside_rank_0 = ranks.process(rank()).node == ranks.process(0).node;
    if (!beside_rank_0 && seen_on_other_hosts(ranks, code)) std::this_thread::sleep_for(kOtherHostsWait);
    if (!ranks.claim_failure(static_cast<int>(code))) {
      std::this_thread::sleep_for(kSilentWait);
      std::_Exit(static_cast<int>(code));
    }
  }
  std::fflush(stdout);
  std::fputs(report.c_str(), stderr);
  std::fflush(stderr);
  if (job_) job_->abort(static_cast<int>(code));
  std::_Exit(static_cast<int>(code));
}

int run_reporting_errors(int argc, char** argv, const std::function<ExitCode(Bootstrap&)>& run) {
  std::optional<Bootstrap> bootstrap;
  std::string message;
  auto code = ExitCode::other;
  std::signal(SIGXFSZ, SIG_IGN);  // beyond `ulimit -f` a write says EFBIG, and has a file to name
  try {
    bootstrap.emplace(&argc, &argv);
    bootstrap->check_builds();
    const ExitCode result = run(*bootstrap);
    bootstrap->finish();
    return static_cast<int>(result);
  } catch (const Error& e) {
    message = e.what();
    code = e.code();
  } catch (const std::bad_alloc&) {
    message = "out of host memory";
    code = ExitCode::memory;
  } catch (const std::exception& e) {
    message = e.what();
  }
  if (bootstrap) bootstrap->fail_job(message, code);
  std::fprintf(stderr, "trainer: %s\n", message.c_str());
  return static_cast<int>(code);
}

}  // namespace trainer
