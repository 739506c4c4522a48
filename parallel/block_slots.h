// Where blocks lie while they are whole, when only their shards are kept: a few buffers that blocks take in turn.
#pragma once
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

  /// A buffer for each slot, as long as the longest of its blocks: [1, longest], absent where it has none.
  std::array<Tensor, kCount> take(const ParamLayout& layout, std::string_view name, Dtype dtype, Arena& arena) const;

 private:
  int last_block_;
  bool tied_;
};

}  // namespace trainer
