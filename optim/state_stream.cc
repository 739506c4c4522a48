#include "optim/state_stream.h"

namespace trainer {
namespace {

/// Calls use(tensor on the device, the same tensor at home) for each tensor of the state.
template <class Use>
void for_each_tensor(const ops::ShardTensors& here, const ops::ShardTensors& home, const Use& use) {
  for (Tensor ops::ShardTensors::*tensor :
       {&ops::ShardTensors::low, &ops::ShardTensors::master, &ops::ShardTensors::m, &ops::ShardTensors::v})
    if (home.*tensor) use(here.*tensor, home.*tensor);
}

ops::ShardTensors take_buffer(const ops::ShardTensors& like, Arena& arena) {
  const auto take = [&](const Tensor& tensor) {
    if (!tensor) return Tensor{};
    return arena.take(MemoryClass::communication, "optimizer state on its way", 1, tensor.numel(), tensor.dtype);
  };
  ops::ShardTensors buffer;
  buffer.low = take(like.low);
  buffer.master = take(like.master);
  buffer.m = take(like.m);
  buffer.v = take(like.v);
  return buffer;
}

}  // namespace

StateStream::StateStream(Device device, bool overlap, const ops::ShardTensors& like, Arena& arena)
    : in_(Context{.device = device}, overlap),
      out_(Context{.device = device}, overlap),
      slots_{Slot{take_buffer(like, arena), {}, {}, Event(device), Event(device)},
             Slot{take_buffer(like, arena), {}, {}, Event(device), Event(device)}} {}

void StateStream::fetch(const Context& ctx, const ops::ShardTensors& home, std::int64_t count) {
  TRAINER_CHECK(fetched_ - stored_ < static_cast<std::int64_t>(slots_.size()), "no place for another piece of state");
  Slot& slot = this->slot(fetched_++);
  slot.home = home;
  slot.here = slot.buffer.flat_range(0, count);
  const Context& in = in_.after(ctx);
  slot.stored.wait(in);  // the piece that was here before
  for_each_tensor(slot.here, home, [&](const Tensor& here, const Tensor& there) {
    copy_to_device(in, here.data, there.data, there.bytes());
  });
  slot.fetched.record(in);
}

ops::ShardTensors StateStream::arrive(const Context& ctx) {
  TRAINER_CHECK(stored_ < fetched_, "no piece of state was fetched");
  Slot& slot = this->slot(stored_);
  slot.fetched.wait(ctx);
  return slot.here;
}

void StateStream::store(const Context& ctx) {
  Slot& slot = this->slot(stored_++);
  const Context& out = out_.after(ctx);
  for_each_tensor(slot.here, slot.home, [&](const Tensor& here, const Tensor& there) {
    copy_to_host(out, there.data, here.data, there.bytes());
  });
  slot.stored.record(out);
}

void StateStream::finish(const Context& ctx) {
  for (const Slot& slot : slots_) slot.stored.wait(ctx);
}

}  // namespace trainer
