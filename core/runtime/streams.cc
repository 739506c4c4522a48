#include "core/runtime/streams.h"

namespace trainer {

CommQueue::CommQueue(const Context& compute, bool overlap)
    : device_(compute.device),
      separate_(overlap && compute.device.kind == DeviceKind::cuda),
      overlap_(separate_),
      stream_(separate_ ? compute.device : Device{}, StreamPriority::high),
      reached_(compute.device) {}

const Context& CommQueue::after(const Context& compute) {
  context_ = compute;
  if (!overlap_) return context_;
  context_.stream = stream_.get();
  context_.workspace = nullptr;
  context_.workspace_bytes = 0;
  reached_.record(compute);
  reached_.wait(context_);
  return context_;
}

void CommQueue::set_overlap(const Context& compute, bool overlap) {
  if (!separate_) return;
  synchronize(after(compute));
  overlap_ = overlap;
}

}  // namespace trainer
