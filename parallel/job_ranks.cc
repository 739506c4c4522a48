#include "parallel/job_ranks.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>
#include <optional>
#include <sstream>
#include <utility>

#include "core/runtime/build_id.h"
#include "core/runtime/environment.h"

namespace trainer {
namespace {

struct ProcStat {
  char state = '?';
  std::uint64_t start_time = 0;
};

/// Fields 3 and 22 of /proc/PID/stat (proc(5)); nothing when there is no such process.
std::optional<ProcStat> read_stat(std::int64_t pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const std::size_t name_end = text.rfind(')');  // the name itself may hold spaces and parentheses
  if (name_end == std::string::npos) return std::nullopt;
  std::istringstream fields(text.substr(name_end + 1));
  ProcStat stat;
  fields >> stat.state;
  std::string skipped;
  for (int field = 4; field < 22; ++field) fields >> skipped;
  fields >> stat.start_time;
  if (!fields) return std::nullopt;
  return stat;
}

}  // namespace

RankProcess this_process() {
  RankProcess process;
  std::strncpy(process.build, build_id().c_str(), sizeof process.build - 1);
  std::strncpy(process.host, host_name().c_str(), sizeof process.host - 1);
  process.pid = getpid();
  if (const auto stat = read_stat(process.pid)) process.start_time = stat->start_time;
  return process;
}

JobRanks::JobRanks(std::vector<RankProcess> ranks, int rank, NodeMemory shared,
                   std::function<bool(int)> connection_lost)
    : ranks_(std::move(ranks)),
      rank_(rank),
      launcher_pid_(getppid()),
      shared_(shared),
      connection_lost_(std::move(connection_lost)) {
  // Containers can share memory and still not see each other's processes: watch only what is visible now.
  for (const RankProcess& other : ranks_) {
    const auto stat = other.node == process(rank_).node ? read_stat(other.pid) : std::nullopt;
    watched_.push_back(stat && stat->start_time == other.start_time);
  }
}

int JobRanks::local_size() const {
  return static_cast<int>(std::count_if(ranks_.begin(), ranks_.end(), [this](const RankProcess& process) {
    return process.node == ranks_[static_cast<std::size_t>(rank_)].node;
  }));
}

ProcessState JobRanks::state(int rank) const {
  if (!watched_[static_cast<std::size_t>(rank)])
    return connection_lost_ && rank != rank_ && connection_lost_(rank) ? ProcessState::unreachable
                                                                       : ProcessState::unknown;
  const auto stat = read_stat(process(rank).pid);
  if (!stat || stat->start_time != process(rank).start_time || stat->state == 'Z' || stat->state == 'X')
    return ProcessState::ended;
  return stat->state == 'T' || stat->state == 't' ? ProcessState::stopped : ProcessState::running;
}

std::string JobRanks::describe(int rank) const {
  std::string_view state;
  switch (this->state(rank)) {
    case ProcessState::stopped:
      state = ", stopped";
      break;
    case ProcessState::ended:
      state = ", has ended";
      break;
    case ProcessState::unreachable:
      state = ", connection lost";
      break;
    case ProcessState::running:
    case ProcessState::unknown:
      break;
  }
  return fmt::format("rank {} (host {}{})", rank, process(rank).host, state);
}

std::string JobRanks::culprits() const {
  std::string text;
  for (int rank = 0; rank < size(); ++rank) {
    const ProcessState state = this->state(rank);
    if (state != ProcessState::running && state != ProcessState::unknown) text += "; " + describe(rank);
  }
  return text;
}

void JobRanks::count_queued() const {
  if (shared_.queued == nullptr) return;
  std::atomic_ref<std::int64_t>(shared_.queued[process(rank_).local_rank]).fetch_add(1, std::memory_order_relaxed);
}

std::string JobRanks::late_ranks() const {
  const auto queued = [this](int rank) {
    return std::atomic_ref<std::int64_t>(shared_.queued[process(rank).local_rank]).load(std::memory_order_relaxed);
  };
  std::string text;
  if (shared_.queued == nullptr) return text;
  for (int rank = 0; rank < size(); ++rank)
    if (process(rank).node == process(rank_).node && queued(rank) < queued(rank_))
      text +=
          fmt::format("; {} has come to {} collectives, this rank to {}", describe(rank), queued(rank), queued(rank_));
  return text;
}

bool JobRanks::launcher_ended() const {
  return !connection_lost_ && getppid() != launcher_pid_;
}

bool JobRanks::claim_failure(int exit_code) {
  std::int32_t unclaimed = 0;
  return std::atomic_ref<std::int32_t>(*shared_.failure).compare_exchange_strong(unclaimed, exit_code);
}

int JobRanks::claimed_code() const {
  return std::atomic_ref<std::int32_t>(*shared_.failure).load(std::memory_order_relaxed);
}

std::string JobRanks::last_operation_text() const {
  if (last_.number == 0) return "none";
  return fmt::format("{} number {} of group '{}' ({} bytes){}", last_.kind, last_.number, last_.group, last_.bytes,
                     last_.finished ? "" : ", not finished");
}

}  // namespace trainer
