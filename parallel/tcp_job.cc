#include "parallel/tcp_job.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <utility>

#include "core/runtime/check.h"
#include "parallel/tcp_transport.h"

namespace trainer {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr auto kLookInterval = 100ms;
// How long the ranks of a host have to end by themselves after one of them has failed.
constexpr auto kEndTime = 2s;

/// Memory that the ranks of a host share: a file in memory, whose name is gone once all have opened it.
class SharedMemory {
 public:
  SharedMemory(const std::string& nonce, int node, int ranks)
      : name_(fmt::format("/trainer-{}-{}", nonce, node)),
        bytes_(sizeof(std::int64_t) * (1 + static_cast<std::size_t>(ranks))) {
    const int file = shm_open(name_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    // All ranks set the same length, and new bytes are zero: it does not matter who comes first.
    if (file < 0 || ftruncate(file, static_cast<off_t>(bytes_)) != 0) give_up(file);
    address_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (address_ == MAP_FAILED) give_up(file);
    close(file);
  }
  ~SharedMemory() { munmap(address_, bytes_); }
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  void remove_name() const { shm_unlink(name_.c_str()); }
  NodeMemory memory() const { return {static_cast<std::int32_t*>(address_), static_cast<std::int64_t*>(address_) + 1}; }

 private:
  [[noreturn]] void give_up(int file) const {
    const int error = errno;
    if (file >= 0) close(file);
    shm_unlink(name_.c_str());
    fail(ExitCode::communication, "cannot share memory '/dev/shm{}' with the ranks of this host: {}", name_,
         std::strerror(error));  // NOLINT(concurrency-mt-unsafe): glibc's is thread-safe
  }

  std::string name_;
  std::size_t bytes_;
  void* address_ = nullptr;
};

/// Says which rank of the start a connection comes from.
struct Greeting {
  char nonce[40] = {};
  std::int32_t rank = 0;
};

/// Connects each two ranks: this one to those below it, those above to this one.
class Connector {
 public:
  Connector(const RendezvousOptions& options, const Rendezvous& met)
      : options_(options), met_(met), deadline_(Clock::now() + 60s), sockets_(met.members.size()) {}

  TcpConnections connect() {
    for (int rank = 0; rank < options_.rank; ++rank) connect_below(rank);
    for (int rank = options_.rank + 1; rank < options_.size; ++rank) await_one_above();
    TcpConnections connections;
    for (Socket& socket : sockets_)
      connections.push_back(socket ? std::make_unique<TcpConnection>(std::move(socket)) : nullptr);
    return connections;
  }

 private:
  const RendezvousMember& member(int rank) const { return met_.members[static_cast<std::size_t>(rank)]; }
  std::string describe(int rank) const { return fmt::format("rank {} (host {})", rank, member(rank).process.host); }

  void connect_below(int rank) {
    const bool same_host = member(rank).process.node == member(options_.rank).process.node;
    std::string problem;
    Socket socket = connect_to(member(rank), same_host, deadline_, problem);
    if (!socket)
      fail(ExitCode::communication, "{} cannot connect to {}: {}; are ports blocked? TRAINER_RENDEZVOUS_PORT sets them",
           describe(options_.rank), describe(rank), problem);
    Greeting greeting;
    std::strncpy(greeting.nonce, met_.nonce.c_str(), sizeof greeting.nonce - 1);
    greeting.rank = options_.rank;
    send_all(socket, &greeting, sizeof greeting, deadline_);
    sockets_[static_cast<std::size_t>(rank)] = std::move(socket);
  }

  void await_one_above() {
    for (;;) {
      Socket socket = accept_from(met_.listener);
      Greeting greeting;
      if (socket && receive_all(socket, &greeting, sizeof greeting, Clock::now() + 5s) &&
          std::strncmp(greeting.nonce, met_.nonce.c_str(), sizeof greeting.nonce) == 0 &&
          greeting.rank > options_.rank && greeting.rank < options_.size) {
        sockets_[static_cast<std::size_t>(greeting.rank)] = std::move(socket);
        return;
      }
      look_for_trouble();
      if (!socket) std::this_thread::sleep_for(1ms);
    }
  }

  void look_for_trouble() const {
    for (std::size_t i = 0; i < met_.lines.size(); ++i)
      if (met_.lines[i] && closed_by_peer(met_.lines[i]))
        fail(ExitCode::communication, "{} has ended during the start", describe(static_cast<int>(i)));
    if (Clock::now() < deadline_) return;
    std::string absent;
    for (int rank = options_.rank + 1; rank < options_.size; ++rank)
      if (!sockets_[static_cast<std::size_t>(rank)]) absent += (absent.empty() ? "" : ", ") + describe(rank);
    fail(ExitCode::communication, "{} has not connected to {}", absent, describe(options_.rank));
  }

  const RendezvousOptions& options_;
  const Rendezvous& met_;
  Deadline deadline_;
  std::vector<Socket> sockets_;  // [size]
};

class TcpJob final : public Job {
 public:
  explicit TcpJob(const RendezvousOptions& options);
  ~TcpJob() override = default;

  [[noreturn]] void abort(int exit_code) override;

 private:
  std::unique_ptr<Transport> transport() override {
    return make_tcp_transport(connections_, ranks_->rank(), ++worlds_);
  }
  void tell_others(int exit_code);
  void watch(const std::stop_token& stop);
  void end_host();

  Rendezvous met_;
  std::unique_ptr<SharedMemory> shared_;
  std::shared_ptr<const TcpConnections> connections_;
  std::uint64_t worlds_ = 0;
  std::atomic<bool> reports_{false};  // this rank ends the job itself
  std::jthread watch_;                // last: joined before what it uses goes
};

TcpJob::TcpJob(const RendezvousOptions& options) : met_(meet(options)) {
  const RankProcess& mine = met_.members[static_cast<std::size_t>(options.rank)].process;
  std::vector<RankProcess> all;
  int on_host = 0;
  for (const RendezvousMember& member : met_.members) {
    all.push_back(member.process);
    on_host += member.process.node == mine.node ? 1 : 0;
  }
  shared_ = std::make_unique<SharedMemory>(met_.nonce, mine.node, on_host);
  // The first rank of a host hears from all its others here, after they have opened the shared memory.
  connections_ = std::make_shared<const TcpConnections>(Connector(options, met_).connect());
  if (mine.local_rank == 0) shared_->remove_name();
  met_.listener = Socket();
  const auto lost = [connections = connections_](int rank) {
    return (*connections)[static_cast<std::size_t>(rank)]->lost();
  };
  ranks_ = std::make_shared<JobRanks>(std::move(all), options.rank, shared_->memory(), lost);
  watch_ = std::jthread([this](const std::stop_token& stop) { watch(stop); });
}

/// Rank 0 tells all; what another rank says goes through it.
void TcpJob::tell_others(int exit_code) {
  const std::int32_t code = exit_code;
  for (const Socket& line : met_.lines)
    if (line) send_all(line, &code, sizeof code, Clock::now());
}

/// Ends this process when another rank has failed, also while it computes.
void TcpJob::watch(const std::stop_token& stop) {
  std::vector<pollfd> polled;
  for (const Socket& line : met_.lines) polled.push_back({line.fd(), POLLIN, 0});
  Clock::time_point claimed_since = Clock::time_point::max();
  while (!stop.stop_requested()) {
    const int ready = poll(polled.data(), polled.size(), static_cast<int>(kLookInterval / 1ms));
    for (std::size_t i = 0; ready > 0 && i < polled.size(); ++i) {
      if (polled[i].revents == 0) continue;
      std::int32_t code = 0;
      if (!receive_all(met_.lines[i], &code, sizeof code, Clock::now() + kLookInterval)) {
        polled[i].fd = -1;  // that rank is gone; whoever waits for it says so
        continue;
      }
      if (reports_) continue;
      if (ranks_->rank() == 0) tell_others(code);
      std::_Exit(code);
    }
    // Rank 0 may be gone, or stopped, and pass nothing on: the ranks of a host see each other's failure too.
    if (!ranks_->failure_claimed()) continue;
    claimed_since = std::min(claimed_since, Clock::now());
    if (!reports_ && Clock::now() - claimed_since > kEndTime) std::_Exit(ranks_->claimed_code());
  }
}

/// No launcher may be there that ends ranks which do not end by themselves (stopped ones).
void TcpJob::end_host() {
  const auto living = [this] {
    std::vector<int> ranks;
    for (int rank = 0; rank < ranks_->size(); ++rank) {
      const ProcessState state = ranks_->state(rank);
      if (rank != ranks_->rank() && (state == ProcessState::running || state == ProcessState::stopped))
        ranks.push_back(rank);
    }
    return ranks;
  };
  const Clock::time_point end = Clock::now() + kEndTime + 5 * kLookInterval;
  while (!living().empty() && Clock::now() < end) std::this_thread::sleep_for(10ms);
  for (const int rank : living()) kill(static_cast<pid_t>(ranks_->process(rank).pid), SIGKILL);
}

void TcpJob::abort(int exit_code) {
  reports_ = true;
  tell_others(exit_code);
  end_host();
  std::_Exit(exit_code);
}

}  // namespace

std::unique_ptr<Job> join_tcp_job(const RendezvousOptions& options) {
  return std::make_unique<TcpJob>(options);
}

}  // namespace trainer
