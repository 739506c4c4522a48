#include "parallel/nccl_watch.h"

#include <algorithm>
#include <utility>

namespace trainer {
namespace {

using namespace std::chrono_literals;

constexpr auto kInterval = 100ms;
constexpr auto kSuspended = 2s;  // a longer pause between two looks: this process itself was stopped

}  // namespace

NcclWatch::NcclWatch(std::shared_ptr<const JobRanks> ranks, Device device, const CommunicatorOptions& options,
                     FailureReport report)
    : ranks_(std::move(ranks)),
      device_(device),
      options_(options),
      report_(std::move(report)),
      thread_([this](const std::stop_token& stop) { run(stop); }) {}

NcclWatch::~NcclWatch() = default;

void NcclWatch::add(const std::shared_ptr<NcclGroup>& group) {
  const std::lock_guard lock(mutex_);
  groups_.push_back(group);
}

std::vector<std::shared_ptr<NcclGroup>> NcclWatch::living() {
  const std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<NcclGroup>> groups;
  for (const auto& weak : groups_)
    if (auto group = weak.lock()) groups.push_back(std::move(group));
  return groups;
}

void NcclWatch::abort() {
  for (const auto& group : living()) group->abort();
}

void NcclWatch::run(const std::stop_token& stop) {
  make_current(device_);
  std::mutex sleeping;
  std::unique_lock lock(sleeping);
  last_look_ = resumed_ = Clock::now();
  while (!stop.stop_requested()) {
    std::string problem;
    try {
      problem = look();
    } catch (const Error& e) {
      problem = e.what();
    }
    if (!problem.empty()) report_(problem);
    stopped_.wait_for(lock, stop, kInterval, [] { return false; });
  }
}

std::string NcclWatch::look() {
  const Clock::time_point now = Clock::now();
  if (now - last_look_ > kSuspended) resumed_ = now;
  last_look_ = now;
  // A group may wait for another one, whose collectives still come to an end: nothing hangs while anything moves.
  Clock::time_point moved = resumed_, oldest_since = Clock::time_point::max();
  std::string oldest, error;
  for (const auto& group : living()) {
    const NcclGroup::Progress progress = group->progress();
    moved = std::max(moved, progress.since);
    if (!progress.oldest.empty() && progress.since < oldest_since) {
      oldest = progress.oldest;
      oldest_since = progress.since;
    }
    if (error.empty()) error = group->asynchronous_error();
  }
  if (oldest.empty() && error.empty()) return {};
  const double waited = std::chrono::duration<double>(now - moved).count();
  const std::string reason = error.empty() ? trouble(waited) : "NCCL: " + error;
  if (reason.empty()) return {};
  return fmt::format("{}: {} waited {:.1f} s: {}{}", oldest.empty() ? "no collective is queued" : oldest,
                     ranks_->describe(ranks_->rank()), waited, reason, ranks_->culprits() + ranks_->late_ranks());
}

std::string NcclWatch::trouble(double waited) {
  if (ranks_->failure_claimed()) return "another rank has failed";
  if (ranks_->launcher_ended()) return "the launcher (mpirun or srun) has ended";
  if (waited >= options_.timeout_seconds)
    return fmt::format("longer than comm.timeout_seconds {}", options_.timeout_seconds);
  bool ended = false, all_watched = true;
  for (int rank = 0; rank < ranks_->size(); ++rank) {
    const ProcessState state = ranks_->state(rank);
    ended = ended || state == ProcessState::ended || state == ProcessState::unreachable;
    all_watched = all_watched && state != ProcessState::unknown;
  }
  // A rank may end in good order after its last collective: what it took part in is done at the second look.
  if (std::exchange(ended_before_, ended) && ended) return "a rank has ended";
  if (options_.stop == nullptr || !options_.stop->load() || all_watched) return {};
  const Clock::time_point now = Clock::now();
  if (stop_seen_ == Clock::time_point{}) stop_seen_ = now;
  const double since_stop = std::chrono::duration<double>(now - stop_seen_).count();
  if (std::min(since_stop, waited) < options_.stop_grace_seconds) return {};
  return fmt::format("longer than {} s after a stop signal", options_.stop_grace_seconds);
}

}  // namespace trainer
