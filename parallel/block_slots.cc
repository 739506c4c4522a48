#include "parallel/block_slots.h"

#include <algorithm>

namespace trainer {

std::array<Tensor, BlockSlots::kCount> BlockSlots::take(const ParamLayout& layout, std::string_view name, Dtype dtype,
                                                        Arena& arena) const {
  std::array<std::int64_t, kCount> longest{};
  for (int block = 0; block < layout.num_blocks(); ++block) {
    std::int64_t& n = longest[static_cast<std::size_t>(slot(block))];
    n = std::max(n, layout.numel(block));
  }
  std::array<Tensor, kCount> buffers;
  for (std::size_t i = 0; i < buffers.size(); ++i)
    if (longest[i] > 0) buffers[i] = arena.take(MemoryClass::communication, name, 1, longest[i], dtype);
  return buffers;
}

}  // namespace trainer
