// Plan, then one allocation a class of memory. The code that lays out buffers runs twice: over an arena that only
// measures, then over one that has memory behind it. `trainer plan` stops after the first pass.
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/runtime/context.h"
#include "core/runtime/tensor.h"

namespace trainer {

/// The rows of the memory table.
enum class MemoryClass : std::uint8_t {
  weights,
  gradients,
  masters,
  moments,
  activations,
  workspace,
  logits,
  communication,
  host  // pinned memory of the host, not of the device
};
constexpr int kMemoryClasses = 9;
std::string_view memory_class_name(MemoryClass memory_class);

/// Bytes of each class.
using MemoryPlan = std::array<std::int64_t, kMemoryClasses>;

class Arena {
 public:
  /// Measures only: tensors have shapes and no data.
  Arena() = default;
  /// Has `plan` bytes of each class on `device` (the class host: beside it), zero-filled. Throws Error(memory) that
  /// names the class and the bytes when they cannot be had.
  Arena(Device device, const MemoryPlan& plan);

  /// A contiguous [rows, cols] tensor, 256-byte aligned, valid as long as the arena. `name` is for the largest-buffers
  /// table.
  Tensor take(MemoryClass memory_class, std::string_view name, std::int64_t rows, std::int64_t cols, Dtype dtype);

  /// Bytes taken of each class so far.
  const MemoryPlan& plan() const { return used_; }

  struct Buffer {
    std::string name;
    MemoryClass memory_class;
    std::int64_t bytes;
  };
  /// Bytes taken under each name, largest first (the measuring arena only).
  std::vector<Buffer> largest() const;

 private:
  bool measuring_ = true;
  MemoryPlan used_{};
  MemoryPlan capacity_{};
  std::array<std::shared_ptr<void>, kMemoryClasses> memory_;
  std::vector<Buffer> buffers_;
};

}  // namespace trainer
