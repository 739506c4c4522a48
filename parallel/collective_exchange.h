// What the ranks of a group say to each other in a collective, with waiting that can end.
#pragma once
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "parallel/job.h"

namespace trainer {

enum class CollectiveKind : std::uint8_t { barrier, all_reduce, reduce_scatter, all_gather, rotate, broadcast };
std::string_view collective_name(CollectiveKind kind);

/// What a rank is about to do. Ranks send it to each other first, so that a disagreement is an error that names both
/// sides instead of a hang or a truncated message.
struct Collective {
  std::uint64_t number = 0;  // counts the collectives of the group
  std::int64_t count = 0;    // elements: all_reduce, broadcast: data; reduce_scatter: out; all_gather, rotate: in
  std::int32_t root = -1;    // broadcast only
  std::int32_t shift = 0;    // rotate only
  CollectiveKind kind = CollectiveKind::barrier;
  Dtype dtype = Dtype::u8;
  ReduceOp op = ReduceOp::sum;
  std::uint8_t unused = 0;
};

/// What this rank sends to and receives from one other rank.
struct Piece {
  const char* send = nullptr;
  std::int64_t send_bytes = 0;
  char* receive = nullptr;
  std::int64_t receive_bytes = 0;
};

class CollectiveExchange {
 public:
  /// Payloads up to this size travel with the first message.
  static constexpr std::int64_t kInlineBytes = 1024;

  CollectiveExchange(std::unique_ptr<Transport> transport, const std::string& name, std::shared_ptr<JobRanks> job,
                     const CommunicatorOptions& options);

  int rank() const { return rank_; }
  int size() const { return size_; }
  Transport& transport() const { return *transport_; }

  /// Starts a collective: every rank sends its description to every other (broadcast: the root only), and pieces of at
  /// most kInlineBytes with it. pieces [size]; the own one is ignored. Throws when a description differs.
  void announce(Collective collective, std::int64_t bytes, const std::vector<Piece>& pieces);
  /// Longer pieces, in messages of at most options.piece_bytes.
  void transfer(const std::vector<Piece>& pieces);
  /// The collective is done.
  void finish() { job_->last_operation().finished = true; }

 private:
  using Clock = std::chrono::steady_clock;
  struct Message {  // of the exchange in progress
    int peer;
    bool receive;
    std::int64_t bytes;  // receive: expected; -1: any
  };

  void post_send(int peer, const void* data, std::int64_t bytes);
  void post_receive(int peer, void* data, std::int64_t bytes, bool exact);
  void wait();
  void check_received();
  void check_description(int peer, const Collective& theirs) const;
  std::vector<int> missing();
  void look_for_trouble(Clock::duration waited);
  [[noreturn]] void transport_failed();
  /// `reason` may be empty: the states of the missing ranks say enough.
  [[noreturn]] void give_up(const std::string& reason, double waited_seconds);
  std::string where() const;
  /// A rank of this group.
  std::string describe(int peer) const;
  int world_rank(int peer) const { return transport_->world_ranks()[static_cast<std::size_t>(peer)]; }

  std::unique_ptr<Transport> transport_;
  std::string name_;
  std::shared_ptr<JobRanks> job_;
  CommunicatorOptions options_;
  int rank_;
  int size_;

  Collective current_;
  std::vector<std::vector<char>> outbox_, inbox_;  // [size] first messages
  std::vector<Message> messages_;
  std::vector<int> ended_;  // peers that were seen to have ended at the last look
  Clock::time_point stop_seen_{};
};

}  // namespace trainer
