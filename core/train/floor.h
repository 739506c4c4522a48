// The floor of a training step: the time below which this card cannot do it with these matrix products and this
// attention. The step's own GEMMs and attention calls run as they are, in order; in place of the ops between them a
// copy moves the bytes that those must move. Nothing waits for a host, and the card is as warm as in training.
#pragma once
#include <cstdint>
#include <vector>

#include "kernels/op_profiler.h"

namespace trainer {

struct FloorTime {
  double median_ms = 0.0;  // of the second half of the replays
  double min_ms = 0.0;
  std::int64_t replays = 0;
};

/// Replays `calls`, all calls of one step, for about `seconds`. Overwrites activations and gradients of the engine that
/// they came from; its training state is not to be used afterwards. Takes up to 1 GiB of the device for the copies.
/// Throws Error(memory) when too little is free for them.
FloorTime replay_floor(const Context& ctx, const std::vector<OpProfiler::Call>& calls, double seconds);

/// Bytes of each of the two buffers between which `traffic` bytes are copied, when `free_bytes` of the device are free:
/// smaller ones are gone over more often. Throws Error(memory) when they would fit into the card's cache, whose speed
/// is another.
std::int64_t floor_buffer_bytes(std::int64_t traffic, std::int64_t free_bytes);

}  // namespace trainer
