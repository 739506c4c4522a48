#include "core/runtime/arena.h"

#include <algorithm>

#include "core/runtime/device.h"
#include "core/runtime/divide.h"

namespace trainer {
namespace {

/// Each tensor begins as aligned as the memory that it is cut from.
std::int64_t aligned(std::int64_t bytes) {
  return round_up(bytes, kMemoryAlignment);
}

}  // namespace

std::string_view memory_class_name(MemoryClass memory_class) {
  static constexpr std::string_view kNames[kMemoryClasses] = {
      "weights", "gradients", "masters", "moments", "activations", "workspace", "logits", "communication", "host"};
  return kNames[static_cast<std::size_t>(memory_class)];
}

Arena::Arena(Device device, const MemoryPlan& plan) : measuring_(false), capacity_(plan) {
  for (int c = 0; c < kMemoryClasses; ++c) {
    const auto i = static_cast<std::size_t>(c);
    if (plan[i] == 0) continue;
    const auto memory_class = static_cast<MemoryClass>(c);
    const auto get = memory_class == MemoryClass::host ? allocate_pinned : allocate;
    memory_[i] = get(device, aligned(plan[i]), memory_class_name(memory_class));
  }
}

Tensor Arena::take(MemoryClass memory_class, std::string_view name, std::int64_t rows, std::int64_t cols, Dtype dtype) {
  const auto c = static_cast<std::size_t>(memory_class);
  const std::int64_t bytes = rows * cols * dtype_size(dtype);
  const std::int64_t start = used_[c];
  used_[c] = start + aligned(bytes);
  if (measuring_) {
    const auto same = std::find_if(buffers_.begin(), buffers_.end(),
                                   [&](const Buffer& b) { return b.name == name && b.memory_class == memory_class; });
    if (same == buffers_.end())
      buffers_.push_back({std::string(name), memory_class, bytes});
    else
      same->bytes += bytes;
    return tensor_over(nullptr, dtype, rows, cols);
  }
  TRAINER_CHECK(used_[c] <= capacity_[c], "'{}' does not fit the planned {} bytes of {}", name, capacity_[c],
                memory_class_name(memory_class));
  return tensor_over(static_cast<char*>(memory_[c].get()) + start, dtype, rows, cols);
}

std::vector<Arena::Buffer> Arena::largest() const {
  std::vector<Buffer> sorted = buffers_;
  std::stable_sort(sorted.begin(), sorted.end(), [](const Buffer& a, const Buffer& b) { return a.bytes > b.bytes; });
  return sorted;
}

}  // namespace trainer
