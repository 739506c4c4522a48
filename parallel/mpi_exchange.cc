#include "parallel/mpi_exchange.h"

#include <sched.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <numeric>
#include <thread>
#include <utility>

namespace trainer {
namespace {

using namespace std::chrono_literals;

constexpr auto kLookInterval = 100ms;  // between looks at the other processes while waiting
constexpr auto kSuspended = 2s;        // a longer pause between two polls: this process itself was stopped

double seconds(std::chrono::steady_clock::duration d) {
  return std::chrono::duration<double>(d).count();
}

/// Polls first give the core away, because ranks may share cores, and later sleep.
void back_off(int polls) {
  if (polls < 200)
    sched_yield();
  else
    std::this_thread::sleep_for(polls < 2000 ? 20us : 200us);
}

std::string describe(const Collective& c) {
  std::string text = fmt::format("{} of {} {} elements", collective_name(c.kind), c.count, dtype_name(c.dtype));
  constexpr std::string_view kOps[] = {"sum", "max", "min"};
  if (c.kind == CollectiveKind::all_reduce) text += fmt::format(" ({})", kOps[static_cast<std::size_t>(c.op)]);
  if (c.kind == CollectiveKind::broadcast) text += fmt::format(" (root {})", c.root);
  return text;
}

}  // namespace

std::string_view collective_name(CollectiveKind kind) {
  constexpr std::string_view kNames[] = {"barrier", "all_reduce", "reduce_scatter", "all_gather", "broadcast"};
  return kNames[static_cast<std::size_t>(kind)];
}

void check_mpi(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(code, text, &length);
  fail(ExitCode::communication, "{}: {}", call, text);
}

MpiExchange::MpiExchange(MPI_Comm comm, const std::string& name, std::shared_ptr<JobRanks> job,
                         const CommunicatorOptions& options)
    : comm_(comm), name_(name), job_(std::move(job)), options_(options) {
  TRAINER_CHECK(options.piece_bytes > 0 && options.piece_bytes <= INT32_MAX, "piece_bytes {}", options.piece_bytes);
  check_mpi(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  int size = 0;
  check_mpi(MPI_Comm_rank(comm_, &rank_), "MPI_Comm_rank");
  check_mpi(MPI_Comm_size(comm_, &size), "MPI_Comm_size");

  MPI_Group group = MPI_GROUP_NULL, world = MPI_GROUP_NULL;
  MPI_Comm_group(comm_, &group);
  MPI_Comm_group(MPI_COMM_WORLD, &world);
  std::vector<int> own(static_cast<std::size_t>(size));
  std::iota(own.begin(), own.end(), 0);
  world_ranks_.resize(own.size());
  check_mpi(MPI_Group_translate_ranks(group, size, own.data(), world, world_ranks_.data()),
            "MPI_Group_translate_ranks");
  MPI_Group_free(&group);
  MPI_Group_free(&world);

  void* upper_bound = nullptr;
  int found = 0;
  check_mpi(MPI_Comm_get_attr(comm_, MPI_TAG_UB, &upper_bound, &found), "MPI_Comm_get_attr");
  tags_ = found != 0 ? *static_cast<int*>(upper_bound) : 32767;  // the standard's least

  const std::size_t box = sizeof(Collective) + static_cast<std::size_t>(kInlineBytes);
  outbox_.assign(own.size(), std::vector<char>(box));
  inbox_ = outbox_;
}

MpiExchange::~MpiExchange() {
  int finalized = 0;
  MPI_Finalized(&finalized);
  // While an exception passes, other ranks may not come to a collective call.
  if (finalized == 0 && std::uncaught_exceptions() == 0) MPI_Comm_free(&comm_);
}

void MpiExchange::announce(Collective collective, std::int64_t bytes, const std::vector<Piece>& pieces) {
  collective.number = current_.number + 1;
  current_ = collective;
  LastOperation& last = job_->last_operation();
  last = {.kind = collective_name(current_.kind),
          .group = name_,
          .number = current_.number,
          .bytes = bytes,
          .finished = false};

  const bool to_all = current_.root < 0 || current_.root == rank_;
  for (int r = 0; r < size(); ++r) {
    if (r == rank_ || (current_.root >= 0 && current_.root != r)) continue;
    post_receive(r, inbox_[static_cast<std::size_t>(r)].data(), sizeof(Collective) + kInlineBytes, false);
  }
  for (int r = 0; r < size() && to_all; ++r) {
    if (r == rank_) continue;
    const Piece& piece = pieces[static_cast<std::size_t>(r)];
    char* box = outbox_[static_cast<std::size_t>(r)].data();
    std::memcpy(box, &current_, sizeof current_);
    const std::int64_t with = piece.send_bytes <= kInlineBytes ? piece.send_bytes : 0;
    if (with > 0) std::memcpy(box + sizeof current_, piece.send, static_cast<std::size_t>(with));
    post_send(r, box, static_cast<std::int64_t>(sizeof current_) + with);
  }
  wait();

  for (int r = 0; r < size(); ++r) {
    if (r == rank_ || (current_.root >= 0 && current_.root != r)) continue;
    const char* box = inbox_[static_cast<std::size_t>(r)].data();
    Collective theirs;
    std::memcpy(&theirs, box, sizeof theirs);
    check_description(r, theirs);
    const Piece& piece = pieces[static_cast<std::size_t>(r)];
    if (piece.receive_bytes > 0 && piece.receive_bytes <= kInlineBytes)
      std::memcpy(piece.receive, box + sizeof theirs, static_cast<std::size_t>(piece.receive_bytes));
  }
}

void MpiExchange::check_description(int peer, const Collective& theirs) const {
  if (theirs.number == current_.number && theirs.count == current_.count && theirs.root == current_.root &&
      theirs.kind == current_.kind && theirs.dtype == current_.dtype && theirs.op == current_.op)
    return;
  fail(ExitCode::communication, "{}: the ranks disagree: {} is in {}, {} in {}", where(), job_->describe(job_->rank()),
       describe(current_), job_->describe(world_ranks_[static_cast<std::size_t>(peer)]), describe(theirs));
}

void MpiExchange::transfer(const std::vector<Piece>& pieces) {
  const std::int64_t longest = options_.piece_bytes;
  for (int r = 0; r < size(); ++r) {
    if (r == rank_) continue;
    const Piece& piece = pieces[static_cast<std::size_t>(r)];
    for (std::int64_t first = 0; first < piece.receive_bytes; first += longest)
      post_receive(r, piece.receive + first, std::min(longest, piece.receive_bytes - first), true);
  }
  for (int r = 0; r < size(); ++r) {
    if (r == rank_) continue;
    const Piece& piece = pieces[static_cast<std::size_t>(r)];
    for (std::int64_t first = 0; first < piece.send_bytes; first += longest)
      post_send(r, piece.send + first, std::min(longest, piece.send_bytes - first));
  }
  wait();
}

void MpiExchange::post_send(int peer, const void* data, std::int64_t bytes) {
  requests_.push_back(MPI_REQUEST_NULL);
  messages_.push_back({peer, false, bytes});
  const int tag = static_cast<int>(current_.number % static_cast<std::uint64_t>(tags_));
  check_mpi(MPI_Isend(data, static_cast<int>(bytes), MPI_BYTE, peer, tag, comm_, &requests_.back()), "MPI_Isend");
}

void MpiExchange::post_receive(int peer, void* data, std::int64_t bytes, bool exact) {
  requests_.push_back(MPI_REQUEST_NULL);
  messages_.push_back({peer, true, exact ? bytes : -1});
  const int tag = static_cast<int>(current_.number % static_cast<std::uint64_t>(tags_));
  check_mpi(MPI_Irecv(data, static_cast<int>(bytes), MPI_BYTE, peer, tag, comm_, &requests_.back()), "MPI_Irecv");
}

void MpiExchange::wait() {
  statuses_.resize(requests_.size());
  ended_.clear();
  Clock::time_point start = Clock::now();
  Clock::time_point last_poll = start, last_look = start;
  for (int polls = 0;; ++polls) {
    int done = 0;
    const int code = MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &done, statuses_.data());
    if (code != MPI_SUCCESS) transport_failed(code);
    if (done != 0) break;
    const Clock::time_point now = Clock::now();
    if (now - last_poll > kSuspended) start += now - last_poll;
    last_poll = now;
    if (job_->failure_claimed()) give_up("another rank has failed", seconds(now - start));
    if (now - last_look >= kLookInterval) {
      look_for_trouble(now - start);
      last_look = now;
    }
    back_off(polls);
  }
  check_received();
  requests_.clear();
  messages_.clear();
}

void MpiExchange::check_received() {
  for (std::size_t i = 0; i < messages_.size(); ++i) {
    if (!messages_[i].receive || messages_[i].bytes < 0) continue;
    int bytes = 0;
    MPI_Get_count(&statuses_[i], MPI_BYTE, &bytes);
    if (bytes == messages_[i].bytes) continue;
    fail(ExitCode::communication, "{}: {} sent {} bytes where {} expected {}", where(),
         job_->describe(world_ranks_[static_cast<std::size_t>(messages_[i].peer)]), bytes, job_->describe(job_->rank()),
         messages_[i].bytes);
  }
}

/// Peers whose messages have not come; when all came, those that have not taken ours.
std::vector<int> MpiExchange::missing() {
  std::vector<int> receives, sends;
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    int done = 0;
    MPI_Request_get_status(requests_[i], &done, MPI_STATUS_IGNORE);
    std::vector<int>& list = messages_[i].receive ? receives : sends;
    const int peer = messages_[i].peer;
    if (done == 0 && std::find(list.begin(), list.end(), peer) == list.end()) list.push_back(peer);
  }
  return receives.empty() ? sends : receives;
}

void MpiExchange::look_for_trouble(Clock::duration waited) {
  const std::vector<int> absent = missing();
  std::vector<int> ended;
  bool all_watched = true;
  for (const int peer : absent) {
    const ProcessState state = job_->state(world_ranks_[static_cast<std::size_t>(peer)]);
    if (state == ProcessState::ended) ended.push_back(peer);
    all_watched = all_watched && state != ProcessState::unknown;
  }
  // A rank may send its last message and end in good order: what it sent is there at the second look.
  for (const int peer : ended)
    if (std::find(ended_.begin(), ended_.end(), peer) != ended_.end()) give_up("", seconds(waited));
  ended_ = std::move(ended);
  if (job_->launcher_ended()) give_up("the launcher (mpirun or srun) has ended", seconds(waited));
  if (seconds(waited) >= options_.timeout_seconds)
    give_up(fmt::format("longer than comm.timeout_seconds {}{}", options_.timeout_seconds, job_->culprits()),
            seconds(waited));
  if (options_.stop == nullptr || !options_.stop->load() || all_watched) return;
  const Clock::time_point now = Clock::now();
  if (stop_seen_ == Clock::time_point{}) stop_seen_ = now;
  if (seconds(std::min(now - stop_seen_, waited)) >= options_.stop_grace_seconds)
    give_up(fmt::format("longer than {} s after a stop signal", options_.stop_grace_seconds), seconds(waited));
}

void MpiExchange::give_up(const std::string& reason, double waited_seconds) {
  std::string text = fmt::format("{}: {} waited {:.1f} s for {}", where(), job_->describe(job_->rank()), waited_seconds,
                                 describe_all(missing()));
  if (!reason.empty()) text += ": " + reason;
  abandon();
  throw Error(ExitCode::communication, text);
}

void MpiExchange::transport_failed(int code) {
  std::string text = fmt::format("{}: {}", where(), job_->describe(job_->rank()));
  for (std::size_t i = 0; code == MPI_ERR_IN_STATUS && i < messages_.size(); ++i) {
    const int error = statuses_[i].MPI_ERROR;
    if (error == MPI_SUCCESS || error == MPI_ERR_PENDING) continue;
    char reason[MPI_MAX_ERROR_STRING] = {};
    int length = 0;
    MPI_Error_string(error, reason, &length);
    int bytes = 0;
    MPI_Get_count(&statuses_[i], MPI_BYTE, &bytes);
    text += fmt::format("; message {} {}: {} ({} bytes, expected {})", messages_[i].receive ? "from" : "to",
                        job_->describe(world_ranks_[static_cast<std::size_t>(messages_[i].peer)]), reason, bytes,
                        messages_[i].bytes);
  }
  abandon();
  throw Error(ExitCode::communication, text);
}

/// After a failure nothing may arrive any more in memory that is about to be freed.
void MpiExchange::abandon() {
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    if (requests_[i] == MPI_REQUEST_NULL) continue;
    if (messages_[i].receive) MPI_Cancel(&requests_[i]);
    MPI_Request_free(&requests_[i]);
  }
  requests_.clear();
  messages_.clear();
}

std::string MpiExchange::where() const {
  const LastOperation& last = job_->last_operation();
  return fmt::format("{} number {} of group '{}' ({} bytes)", last.kind, last.number, name_, last.bytes);
}

std::string MpiExchange::describe_all(const std::vector<int>& peers) const {
  std::string text;
  for (const int peer : peers)
    text += (text.empty() ? "" : ", ") + job_->describe(world_ranks_[static_cast<std::size_t>(peer)]);
  return text;
}

}  // namespace trainer
