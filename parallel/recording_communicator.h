// Counts what is sent: wraps any communicator, for tests, plans and documents about traffic.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "parallel/communicator.h"

namespace trainer {

struct CommRecord {
  struct Entry {
    std::int64_t calls = 0;
    std::int64_t bytes = 0;  // of the whole tensor: all_reduce, broadcast: data; reduce_scatter: in; all_gather: out
    std::int64_t wire_bytes = 0;  // that one rank sends when the operation runs as a ring
  };
  /// (group name, operation): "all_reduce", "reduce_scatter", "all_gather", "rotate" (bytes: in), "broadcast",
  /// "barrier".
  std::map<std::pair<std::string, std::string>, Entry> entries;

  /// The entry of a group's operation; zeros when it was never called.
  Entry of(const std::string& group, const std::string& operation) const;
  void clear() { entries.clear(); }
};

/// Passes every call on to `inner`; groups that are split off record into the same record.
class RecordingCommunicator final : public Communicator {
 public:
  RecordingCommunicator(std::unique_ptr<Communicator> inner, std::shared_ptr<CommRecord> record)
      : inner_(std::move(inner)), record_(std::move(record)) {}

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  const std::string& name() const override { return inner_->name(); }
  void all_reduce(const Context& ctx, const Tensor& data, ReduceOp op) override;
  void reduce_scatter(const Context& ctx, const Tensor& in, const Tensor& out) override;
  void all_gather(const Context& ctx, const Tensor& in, const Tensor& out) override;
  void rotate(const Context& ctx, const Tensor& in, const Tensor& out, int shift) override;
  void broadcast(const Context& ctx, const Tensor& data, int root) override;
  void barrier() override;
  void abort() override { inner_->abort(); }
  std::unique_ptr<Communicator> split(int color, int key, const std::string& name) override;

 private:
  void count_ring(const char* operation, std::int64_t bytes, std::int64_t ring_passes);
  void count(const char* operation, std::int64_t bytes, std::int64_t wire_bytes);

  std::unique_ptr<Communicator> inner_;
  std::shared_ptr<CommRecord> record_;
};

}  // namespace trainer
