// Where blocks lie while they are whole, when only their shards are kept: a few buffers that blocks take in turn.
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>

#include "core/runtime/arena.h"
#include "core/runtime/param.h"

namespace trainer {

/// Transformer blocks alternate between two slots, so that the next one can be communicated while one is computed.
/// Embedding and head, which are never needed together, share the third; with tied weights they are, and the head's
/// block, a norm only, has the fourth.
class BlockSlots {
 public:
  static constexpr int kCount = 4;

  BlockSlots(const ParamLayout& layout, bool tied) : last_block_(layout.num_blocks() - 1), tied_(tied) {}

  int slot(int block) const {
    if (block == 0) return 2;
    if (block == last_block_) return tied_ ? 3 : 2;
    return block % 2;
  }

  /// Of the blocks between embedding and head.
  bool of_transformer_block(int block) const { return block > 0 && block < last_block_; }
  int num_transformer_blocks() const { return last_block_ - 1; }

  /// A buffer for each slot, as long as the longest of its blocks: [1, longest] of dtype(block), the same for all
  /// blocks of a slot; absent where it has none. numel(block): elements of a block.
  template <class Numel, class Type>
  std::array<Tensor, kCount> take(std::string_view name, const Numel& numel, const Type& dtype, Arena& arena) const {
    std::array<std::int64_t, kCount> longest{};
    std::array<Dtype, kCount> types{};
    for (int block = 0; block <= last_block_; ++block) {
      const auto i = static_cast<std::size_t>(slot(block));
      longest[i] = std::max<std::int64_t>(longest[i], numel(block));
      types[i] = dtype(block);
    }
    std::array<Tensor, kCount> buffers;
    for (std::size_t i = 0; i < buffers.size(); ++i)
      if (longest[i] > 0) buffers[i] = arena.take(MemoryClass::communication, name, 1, longest[i], types[i]);
    return buffers;
  }

 private:
  int last_block_;
  bool tied_;
};

}  // namespace trainer
