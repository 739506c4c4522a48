// Messages of host memory between the ranks of one group, with nothing that blocks: what carries the collectives of
// host_communicator.h. Implementations: mpi_transport.h and tcp_transport.h.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace trainer {

/// The messages that are under way together are an exchange: send() and receive() add to it, progress() moves it, and
/// clear() or abandon() ends it. Those of one rank to another with one number arrive in the order in which they were
/// sent; messages of another number or another transport are never mistaken for them.
class Transport {
 public:
  virtual ~Transport() = default;

  virtual int rank() const = 0;
  /// Of the members, in their order here. [size]
  virtual const std::vector<int>& world_ranks() const = 0;

  /// `data` must stay until the exchange ends. At most 2 GiB.
  virtual void send(int peer, std::uint64_t number, const void* data, std::int64_t bytes) = 0;
  /// Up to `bytes` bytes.
  virtual void receive(int peer, std::uint64_t number, void* data, std::int64_t bytes) = 0;

  enum class State : std::uint8_t { waiting, done, failed };
  /// Moves what can be moved.
  virtual State progress() = 0;

  // Of message number `i`, counted in the order of send() and receive():
  virtual bool done(std::size_t i) = 0;
  /// Bytes that came, once done.
  virtual std::int64_t received(std::size_t i) = 0;
  /// Why it failed; empty when it did not.
  virtual std::string failure(std::size_t i) = 0;

  /// All messages are done: the next exchange may begin.
  virtual void clear() = 0;
  /// After a failure: nothing arrives any more in memory that is about to be freed.
  virtual void abandon() = 0;

  /// A group of some of these ranks. `members`: ranks of this group, in the order of the new one. Collective over the
  /// whole group, whose every rank is in one part; called when all have come.
  virtual std::unique_ptr<Transport> part(const std::vector<int>& members) = 0;
};

}  // namespace trainer
