#include "parallel/tcp_transport.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace trainer {
namespace {

/// A number for the part number `part` of a group, which no other group is likely to have (the finaliser of
/// splitmix64: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014).
std::uint64_t number_of_part(std::uint64_t group, std::uint64_t part) {
  std::uint64_t z = group + part * 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

class TcpTransport final : public Transport {
 public:
  TcpTransport(std::shared_ptr<const TcpConnections> connections, std::vector<int> world_ranks, int rank,
               std::uint64_t group)
      : connections_(std::move(connections)), world_ranks_(std::move(world_ranks)), rank_(rank), group_(group) {}
  ~TcpTransport() override { abandon(); }
  TcpTransport(const TcpTransport&) = delete;
  TcpTransport& operator=(const TcpTransport&) = delete;

  int rank() const override { return rank_; }
  const std::vector<int>& world_ranks() const override { return world_ranks_; }

  void send(int peer, std::uint64_t number, const void* data, std::int64_t bytes) override {
    // Read only: a message that is sent is not written to.
    connection(peer).send(add(peer, number, const_cast<void*>(data), bytes));
  }
  void receive(int peer, std::uint64_t number, void* data, std::int64_t bytes) override {
    connection(peer).receive(add(peer, number, data, bytes));
  }

  State progress() override;
  bool done(std::size_t i) override { return messages_[i].message->done; }
  std::int64_t received(std::size_t i) override { return messages_[i].message->received; }
  std::string failure(std::size_t i) override { return messages_[i].message->too_long ? "message is too long" : ""; }
  void clear() override { messages_.clear(); }
  void abandon() override;
  std::unique_ptr<Transport> part(const std::vector<int>& members) override;

 private:
  struct Posted {
    int peer;
    std::shared_ptr<TcpMessage> message;
  };

  TcpConnection& connection(int peer) const {
    return *(*connections_)[static_cast<std::size_t>(world_ranks_[static_cast<std::size_t>(peer)])];
  }
  const std::shared_ptr<TcpMessage>& add(int peer, std::uint64_t number, void* data, std::int64_t bytes);

  std::shared_ptr<const TcpConnections> connections_;
  std::vector<int> world_ranks_;
  int rank_;
  std::uint64_t group_;
  std::uint64_t parts_ = 0;
  std::vector<Posted> messages_;
};

const std::shared_ptr<TcpMessage>& TcpTransport::add(int peer, std::uint64_t number, void* data, std::int64_t bytes) {
  auto message = std::make_shared<TcpMessage>();
  message->group = group_;
  message->number = number;
  message->data = static_cast<char*>(data);
  message->bytes = bytes;
  messages_.push_back({peer, std::move(message)});
  return messages_.back().message;
}

Transport::State TcpTransport::progress() {
  State state = State::done;
  for (const Posted& posted : messages_) {
    if (!posted.message->done) connection(posted.peer).progress();
    if (posted.message->too_long) return State::failed;
    if (!posted.message->done) state = State::waiting;
  }
  return state;
}

void TcpTransport::abandon() {
  for (const Posted& posted : messages_) connection(posted.peer).abandon(posted.message);
  messages_.clear();
}

std::unique_ptr<Transport> TcpTransport::part(const std::vector<int>& members) {
  std::vector<int> world_ranks;
  world_ranks.reserve(members.size());
  for (const int member : members) world_ranks.push_back(world_ranks_[static_cast<std::size_t>(member)]);
  const auto place = std::find(members.begin(), members.end(), rank_) - members.begin();
  // Parts that are made at the same time share the number: no two ranks are together in more than one of them.
  return std::make_unique<TcpTransport>(connections_, std::move(world_ranks), static_cast<int>(place),
                                        number_of_part(group_, ++parts_));
}

}  // namespace

std::unique_ptr<Transport> make_tcp_transport(std::shared_ptr<const TcpConnections> connections, int rank,
                                              std::uint64_t group) {
  std::vector<int> all(connections->size());
  std::iota(all.begin(), all.end(), 0);
  return std::make_unique<TcpTransport>(std::move(connections), std::move(all), rank, number_of_part(group, 0));
}

}  // namespace trainer
