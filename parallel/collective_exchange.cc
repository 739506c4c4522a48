#include "parallel/collective_exchange.h"

#include <sched.h>

#include <algorithm>
#include <cstring>
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

std::string text_of(const Collective& c) {
  std::string text = fmt::format("{} of {} {} elements", collective_name(c.kind), c.count, dtype_name(c.dtype));
  constexpr std::string_view kOps[] = {"sum", "max", "min"};
  if (c.kind == CollectiveKind::all_reduce) text += fmt::format(" ({})", kOps[static_cast<std::size_t>(c.op)]);
  if (c.kind == CollectiveKind::broadcast) text += fmt::format(" (root {})", c.root);
  if (c.kind == CollectiveKind::rotate) text += fmt::format(" (shift {})", c.shift);
  return text;
}

}  // namespace

std::string_view collective_name(CollectiveKind kind) {
  constexpr std::string_view kNames[] = {"barrier",    "all_reduce", "reduce_scatter",
                                         "all_gather", "rotate",     "broadcast"};
  return kNames[static_cast<std::size_t>(kind)];
}

CollectiveExchange::CollectiveExchange(std::unique_ptr<Transport> transport, const std::string& name,
                                       std::shared_ptr<JobRanks> job, const CommunicatorOptions& options)
    : transport_(std::move(transport)),
      name_(name),
      job_(std::move(job)),
      options_(options),
      rank_(transport_->rank()),
      size_(static_cast<int>(transport_->world_ranks().size())) {
  TRAINER_CHECK(options.piece_bytes > 0 && options.piece_bytes <= INT32_MAX, "piece_bytes {}", options.piece_bytes);
  const std::size_t box = sizeof(Collective) + static_cast<std::size_t>(kInlineBytes);
  outbox_.assign(static_cast<std::size_t>(size_), std::vector<char>(box));
  inbox_ = outbox_;
}

void CollectiveExchange::announce(Collective collective, std::int64_t bytes, const std::vector<Piece>& pieces) {
  collective.number = current_.number + 1;
  current_ = collective;
  LastOperation& last = job_->last_operation();
  last = {.kind = collective_name(current_.kind),
          .group = name_,
          .number = current_.number,
          .bytes = bytes,
          .finished = false};
  job_->count_queued();

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

void CollectiveExchange::check_description(int peer, const Collective& theirs) const {
  if (theirs.number == current_.number && theirs.count == current_.count && theirs.root == current_.root &&
      theirs.shift == current_.shift && theirs.kind == current_.kind && theirs.dtype == current_.dtype &&
      theirs.op == current_.op)
    return;
  fail(ExitCode::communication, "{}: the ranks disagree: {} is in {}, {} in {}", where(), describe(rank_),
       text_of(current_), describe(peer), text_of(theirs));
}

void CollectiveExchange::transfer(const std::vector<Piece>& pieces) {
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

void CollectiveExchange::post_send(int peer, const void* data, std::int64_t bytes) {
  messages_.push_back({peer, false, bytes});
  transport_->send(peer, current_.number, data, bytes);
}

void CollectiveExchange::post_receive(int peer, void* data, std::int64_t bytes, bool exact) {
  messages_.push_back({peer, true, exact ? bytes : -1});
  transport_->receive(peer, current_.number, data, bytes);
}

void CollectiveExchange::wait() {
  ended_.clear();
  Clock::time_point start = Clock::now();
  Clock::time_point last_poll = start, last_look = start;
  for (int polls = 0;; ++polls) {
    const Transport::State state = transport_->progress();
    if (state == Transport::State::failed) transport_failed();
    if (state == Transport::State::done) break;
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
  transport_->clear();
  messages_.clear();
}

void CollectiveExchange::check_received() {
  for (std::size_t i = 0; i < messages_.size(); ++i) {
    if (!messages_[i].receive || messages_[i].bytes < 0) continue;
    const std::int64_t bytes = transport_->received(i);
    if (bytes == messages_[i].bytes) continue;
    fail(ExitCode::communication, "{}: {} sent {} bytes where {} expected {}", where(), describe(messages_[i].peer),
         bytes, describe(rank_), messages_[i].bytes);
  }
}

/// Peers whose messages have not come; when all came, those that have not taken ours.
std::vector<int> CollectiveExchange::missing() {
  std::vector<int> receives, sends;
  for (std::size_t i = 0; i < messages_.size(); ++i) {
    std::vector<int>& list = messages_[i].receive ? receives : sends;
    const int peer = messages_[i].peer;
    if (!transport_->done(i) && std::find(list.begin(), list.end(), peer) == list.end()) list.push_back(peer);
  }
  return receives.empty() ? sends : receives;
}

void CollectiveExchange::look_for_trouble(Clock::duration waited) {
  const std::vector<int> absent = missing();
  std::vector<int> ended;
  bool all_watched = true;
  for (const int peer : absent) {
    const ProcessState state = job_->state(world_rank(peer));
    if (state == ProcessState::ended || state == ProcessState::unreachable) ended.push_back(peer);
    all_watched = all_watched && state != ProcessState::unknown;
  }
  // A rank may send its last message and end in good order: what it sent is there at the second look.
  for (const int peer : ended)
    if (std::find(ended_.begin(), ended_.end(), peer) != ended_.end()) give_up("", seconds(waited));
  ended_ = std::move(ended);
  if (job_->launcher_ended()) give_up("the launcher (mpirun or srun) has ended", seconds(waited));
  if (seconds(waited) >= options_.timeout_seconds)
    give_up(fmt::format("longer than comm.timeout_seconds {}{}", options_.timeout_seconds,
                        job_->culprits() + job_->late_ranks()),
            seconds(waited));
  if (options_.stop == nullptr || !options_.stop->load() || all_watched) return;
  const Clock::time_point now = Clock::now();
  if (stop_seen_ == Clock::time_point{}) stop_seen_ = now;
  if (seconds(std::min(now - stop_seen_, waited)) >= options_.stop_grace_seconds)
    give_up(fmt::format("longer than {} s after a stop signal", options_.stop_grace_seconds), seconds(waited));
}

void CollectiveExchange::give_up(const std::string& reason, double waited_seconds) {
  std::string absent;
  for (const int peer : missing()) absent += (absent.empty() ? "" : ", ") + describe(peer);
  std::string text = fmt::format("{}: {} waited {:.1f} s for {}", where(), describe(rank_), waited_seconds, absent);
  if (!reason.empty()) text += ": " + reason;
  transport_->abandon();
  throw Error(ExitCode::communication, text);
}

void CollectiveExchange::transport_failed() {
  std::string text = fmt::format("{}: {}", where(), describe(rank_));
  for (std::size_t i = 0; i < messages_.size(); ++i) {
    const std::string reason = transport_->failure(i);
    if (reason.empty()) continue;
    text += fmt::format("; message {} {}: {} ({} bytes, expected {})", messages_[i].receive ? "from" : "to",
                        describe(messages_[i].peer), reason, transport_->received(i), messages_[i].bytes);
  }
  transport_->abandon();
  throw Error(ExitCode::communication, text);
}

std::string CollectiveExchange::where() const {
  const LastOperation& last = job_->last_operation();
  return fmt::format("{} number {} of group '{}' ({} bytes)", last.kind, last.number, name_, last.bytes);
}

std::string CollectiveExchange::describe(int peer) const {
  return job_->describe(world_rank(peer));
}

}  // namespace trainer
