// The queues of a rank, computation and communication beside it (with other ranks, or with the host's memory), and the
// edges between them.
//   computation -> communication: CommQueue::after
//   communication -> computation: an Event, recorded with the context that after() gave, waited for with the other one
#pragma once
#include "core/runtime/device.h"

namespace trainer {

/// The queue of communication. With overlap, on CUDA, a stream of its own, of high priority, so that its small kernels
/// do not wait for the large ones of computation. Otherwise the queue of computation itself: the same work, one piece
/// after another.
class CommQueue {
 public:
  CommQueue(const Context& compute, bool overlap);

  Device device() const { return device_; }
  /// Where to queue communication that starts after all that was queued with `compute` so far. Ops that need scratch
  /// must not be queued there.
  const Context& after(const Context& compute);

  /// From now on in one queue (false) or in two (true), where the constructor asked for two. Waits for both.
  void set_overlap(const Context& compute, bool overlap);

 private:
  Device device_;
  bool separate_;
  bool overlap_;
  Stream stream_;
  Event reached_;  // in the queue of computation
  Context context_;
};

}  // namespace trainer
