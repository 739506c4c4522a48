#include "parallel/recording_communicator.h"

namespace trainer {

CommRecord::Entry CommRecord::of(const std::string& group, const std::string& operation) const {
  const auto found = entries.find({group, operation});
  return found == entries.end() ? Entry{} : found->second;
}

/// In a ring of p ranks a rank sends (p - 1) / p of the tensor in each pass; an all-reduce is two passes. The last rank
/// of a broadcast sends nothing, so (p - 1) / p is the mean over the ranks.
void RecordingCommunicator::count_ring(const char* operation, std::int64_t bytes, std::int64_t ring_passes) {
  count(operation, bytes, ring_passes * bytes * (size() - 1) / size());
}

void RecordingCommunicator::count(const char* operation, std::int64_t bytes, std::int64_t wire_bytes) {
  CommRecord::Entry& entry = record_->entries[{name(), operation}];
  ++entry.calls;
  entry.bytes += bytes;
  entry.wire_bytes += wire_bytes;
}

void RecordingCommunicator::all_reduce(const Context& ctx, const Tensor& data, ReduceOp op) {
  count_ring("all_reduce", data.bytes(), 2);
  inner_->all_reduce(ctx, data, op);
}

void RecordingCommunicator::reduce_scatter(const Context& ctx, const Tensor& in, const Tensor& out) {
  count_ring("reduce_scatter", in.bytes(), 1);
  inner_->reduce_scatter(ctx, in, out);
}

void RecordingCommunicator::all_gather(const Context& ctx, const Tensor& in, const Tensor& out) {
  count_ring("all_gather", out.bytes(), 1);
  inner_->all_gather(ctx, in, out);
}

void RecordingCommunicator::rotate(const Context& ctx, const Tensor& in, const Tensor& out, int shift) {
  count("rotate", in.bytes(), shift == 0 ? 0 : in.bytes());
  inner_->rotate(ctx, in, out, shift);
}

void RecordingCommunicator::broadcast(const Context& ctx, const Tensor& data, int root) {
  count_ring("broadcast", data.bytes(), 1);
  inner_->broadcast(ctx, data, root);
}

void RecordingCommunicator::barrier() {
  count_ring("barrier", 0, 0);
  inner_->barrier();
}

std::unique_ptr<Communicator> RecordingCommunicator::split(int color, int key, const std::string& name) {
  return std::make_unique<RecordingCommunicator>(inner_->split(color, key, name), record_);
}

}  // namespace trainer
