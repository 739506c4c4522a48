// The one interface to other ranks. Implementations: messages on host memory (host_communicator.h), NCCL on GPU memory
// (nccl_communicator.h), one process alone (self_communicator.h), wrappers that record, profile or skip. All ranks of a
// group call the same operations in the same order with the same counts. Tensors lie where ctx.device says.
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "core/runtime/context.h"
#include "core/runtime/tensor.h"

namespace trainer {

enum class ReduceOp : std::uint8_t { sum, max, min };

/// A group of ranks. On the host, reductions add in rank order, in float32 for 16-bit types and in the type itself
/// otherwise, and round once: the result has the same bits on every rank, in every run, and reduce_scatter gives
/// exactly the bits of all_reduce (NCCL: see there). Tensors are contiguous. Throws Error(communication), naming this
/// rank, its host, the collective and the ranks that did not come, after the timeout, and when counts disagree.
class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// "world", "tp", "dp"...: used in error messages.
  virtual const std::string& name() const = 0;

  /// data [any shape], in place.
  virtual void all_reduce(const Context& ctx, const Tensor& data, ReduceOp op) = 0;
  /// in: size() x out.numel() elements; out: part number rank() of the sum. `out` may be that part of `in` itself.
  virtual void reduce_scatter(const Context& ctx, const Tensor& in, const Tensor& out) = 0;
  /// sum = part number rank() of the sum, rounded to the type of `in` as reduce_scatter does, or with `accumulate` sum
  /// += that. `sum` is of the type of `in` or of the type A of its sums (kernels/ops.h). Part number rank() of `in` may
  /// be overwritten.
  virtual void reduce_scatter_into(const Context& ctx, const Tensor& in, const Tensor& sum, bool accumulate);
  /// out: size() x in.numel() elements, in rank order. `in` may be part number rank() of `out` itself.
  virtual void all_gather(const Context& ctx, const Tensor& in, const Tensor& out) = 0;
  /// out: `in` of rank (rank() + shift) mod size(), so that each rank sends to the one `shift` places before it. 0 <=
  /// shift < size(); 0 copies. size() - 1 shifts make an all-gather in steps, or with sums of what came, a
  /// reduce-scatter. The two may not overlap.
  virtual void rotate(const Context& ctx, const Tensor& in, const Tensor& out, int shift) = 0;
  /// data of `root` to all.
  virtual void broadcast(const Context& ctx, const Tensor& data, int root) = 0;
  virtual void barrier() = 0;
  /// After a failure: ends what is queued on the device, in all groups of this rank, so that its memory can be freed.
  virtual void abort() {}

  /// The ranks with the same color form a new group, ordered by key. Collective over this group.
  virtual std::unique_ptr<Communicator> split(int color, int key, const std::string& name) = 0;
};

/// Part number rank() of `in`, as large as `like`.
inline Tensor own_part(const Communicator& group, const Tensor& in, const Tensor& like) {
  return in.flat_range(group.rank() * like.numel(), like.numel());
}

/// What implementations ask of the arguments of their collectives. Throw Error(other).
void check_all_reduce(const Tensor& data);
void check_reduce_scatter(const Communicator& group, const Tensor& in, const Tensor& out);
void check_all_gather(const Communicator& group, const Tensor& in, const Tensor& out);
void check_rotate(const Communicator& group, const Tensor& in, const Tensor& out, int shift);
void check_broadcast(const Communicator& group, const Tensor& data, int root);

}  // namespace trainer
