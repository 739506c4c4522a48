// Optimizer state that lives in the host's memory and visits the device one piece at a time: while a piece is updated,
// the next one comes and the one before it goes, each in a queue of its own.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>

#include "core/runtime/arena.h"
#include "core/runtime/streams.h"
#include "kernels/ops.h"

namespace trainer {

/// Two places on the device that pieces take in turn. Moving a piece takes many times as long as updating it, so that
/// with two of them both directions of the link are busy all the time.
///
/// Each piece: fetch, arrive, store, in this order; fetch of the next one between fetch and store. Tensors of the state
/// may be absent; weight and grad take no part.
class StateStream {
 public:
  /// `like`: the types of the state, [1, longest piece] each. Takes two of each from the class communication of
  /// `arena`. `overlap`: whether copies have queues of their own (on CUDA).
  StateStream(Device device, bool overlap, const ops::ShardTensors& like, Arena& arena);

  /// Begins to bring the piece `home` of `count` elements (host memory, pinned) to the device.
  void fetch(const Context& ctx, const ops::ShardTensors& home, std::int64_t count);
  /// The oldest piece that was fetched and not stored, on the device. What is queued on ctx.stream from now on finds it
  /// there.
  ops::ShardTensors arrive(const Context& ctx);
  /// Takes that piece home, as what is queued on ctx.stream so far leaves it.
  void store(const Context& ctx);
  /// What is queued on ctx.stream from now on finds all pieces at home.
  void finish(const Context& ctx);

 private:
  struct Slot {
    ops::ShardTensors buffer;
    ops::ShardTensors here, home;  // the piece: the part of the buffer that it fills, and where it lives
    Event fetched, stored;
  };
  Slot& slot(std::int64_t piece) { return slots_[static_cast<std::size_t>(piece) % slots_.size()]; }

  CommQueue in_, out_;
  std::array<Slot, 2> slots_;
  std::int64_t fetched_ = 0, stored_ = 0;  // pieces
};

}  // namespace trainer
