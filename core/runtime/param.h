// Parameters: declared once, by the layer that owns them; everything else (reduction, norm, optimizer, checkpoint)
// reads the declaration. Storage is one flat buffer a block: a block is the unit of reduction, of ZeRO sharding and of
// gathering.
#pragma once
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "core/runtime/tensor.h"

namespace trainer {

/// A contiguous range of elements of a block's flat buffer.
struct FlatRange {
  std::int64_t first = 0;
  std::int64_t count = 0;
  std::int64_t end() const { return first + count; }
};

/// What two ranges have in common; count 0 when that is nothing.
inline FlatRange intersect(const FlatRange& a, const FlatRange& b) {
  const std::int64_t first = std::max(a.first, b.first);
  return {first, std::max<std::int64_t>(std::min(a.end(), b.end()) - first, 0)};
}

/// How a parameter is spread over the tensor-parallel ranks.
enum class ParamSplit : std::uint8_t {
  replicated,
  rows,     // rows are split: column-parallel weights and biases, the vocabulary
  columns,  // columns are split: row-parallel weights
  kv_rows,  // as rows while there are KV heads enough; beyond that, groups of ranks hold the same KV head
};

/// What a rank has after its own backward pass.
enum class GradArrival : std::uint8_t {
  whole,
  partial,  // to be added over the tp ranks that hold the same copy
};

enum class ParamInit : std::uint8_t { zeros, ones, normal };

struct ParamDecl {
  std::string name;       // "model.layers.0.self_attn.q_proj.weight": Hugging Face's Llama names for every family
  int block = 0;          // 0: embedding, 1..num_layers: transformer blocks, num_layers + 1: final norm and LM head
  int dims = 2;           // 1: a vector, stored as [rows, 1]
  std::int64_t rows = 0;  // global shape, without padding
  std::int64_t cols = 1;
  std::int64_t padded_rows = 0;  // vocabulary rows after padding; 0: as rows
  ParamSplit split = ParamSplit::replicated;
  GradArrival arrival = GradArrival::whole;
  ParamInit init = ParamInit::normal;
  double init_std = 0.0;
  bool decay = true;
  bool trainable = true;
  bool fused_with_previous = false;  // directly behind the previous one in memory, so that one GEMM serves both
};

using ParamId = int;

/// Where this rank's part of a parameter lies.
struct LocalParam {
  std::int64_t offset = 0;         // elements from the start of the block's flat buffer
  std::int64_t vector_offset = 0;  // of a vector (dims 1): elements from the start of the block's packed vectors
  std::int64_t rows = 0;           // local shape, padding included
  std::int64_t cols = 0;
  std::int64_t global_row = 0;  // place of the local part in the (padded) global tensor
  std::int64_t global_col = 0;
  std::int64_t real_rows = 0;  // rows that are no padding; they come first
  int copies = 1;              // tp ranks that hold these same elements
  int copy_index = 0;          // which of them this rank is; copy 0 counts for norms
  std::int64_t numel() const { return rows * cols; }
  /// Of the block's flat buffer, without padding rows.
  FlatRange real_range() const { return {offset, real_rows * cols}; }
};

struct TpPlace {
  int rank = 0;
  int size = 1;
  std::int64_t kv_heads = 1;
};

/// The memory layout of all parameters on one rank: a pure function of the declarations and of the place in the mesh.
class ParamLayout {
 public:
  /// Elements by which parameters and ZeRO shards are aligned: 16-byte accesses and whole cache lines for every dtype.
  static constexpr std::int64_t kAlignment = 64;

  /// `zero_size`: each block is padded to a multiple of it x kAlignment, so that it splits evenly. Throws Error(config)
  /// when a split does not divide.
  ParamLayout(std::vector<ParamDecl> decls, const TpPlace& place, int zero_size);

  int num_blocks() const { return static_cast<int>(blocks_.size()); }
  int num_params() const { return static_cast<int>(decls_.size()); }
  const ParamDecl& decl(ParamId id) const { return decls_[static_cast<std::size_t>(id)]; }
  const LocalParam& local(ParamId id) const { return locals_[static_cast<std::size_t>(id)]; }
  /// Parameters of a block, in memory order.
  const std::vector<ParamId>& params(int block) const { return blocks_[static_cast<std::size_t>(block)].params; }
  /// Elements of a block's flat buffer, padding included.
  std::int64_t numel(int block) const { return blocks_[static_cast<std::size_t>(block)].numel; }
  /// Elements of a block's vectors (dims 1) packed one behind the other, aligned as in the flat buffer.
  std::int64_t vector_numel(int block) const { return blocks_[static_cast<std::size_t>(block)].vector_numel; }
  /// Elements of all blocks.
  std::int64_t numel() const;
  /// Part `index` of `parts` equal parts of a block (a ZeRO shard). `parts` divides the ZeRO size given to the
  /// constructor or equals it.
  FlatRange shard(int block, int index, int parts) const;

  /// The tensor of a parameter in its block's flat buffer: [rows, cols].
  Tensor view(const Tensor& block_flat, ParamId id) const;
  /// Several parameters declared one behind the other with fused_with_previous, as one tensor [sum of rows, cols].
  Tensor fused_view(const Tensor& block_flat, ParamId first, ParamId last) const;
  /// The same of vectors in the buffer of a block's packed vectors.
  Tensor packed_view(const Tensor& block_vectors, ParamId first, ParamId last) const;

  /// Ranges of a block whose gradients are added over the whole tp group / over the ranks with the same KV heads.
  /// Neighbouring ranges are merged.
  const std::vector<FlatRange>& tp_partial(int block) const {
    return blocks_[static_cast<std::size_t>(block)].tp_partial;
  }
  const std::vector<FlatRange>& kv_partial(int block) const {
    return blocks_[static_cast<std::size_t>(block)].kv_partial;
  }

  /// Logical number of parameters of the model: global shapes, without padding or copies.
  std::int64_t global_numel() const;

 private:
  Tensor view_at(std::int64_t LocalParam::*offset, const Tensor& buffer, ParamId first, ParamId last) const;

  struct Block {
    std::vector<ParamId> params;
    std::int64_t numel = 0;
    std::int64_t vector_numel = 0;
    std::vector<FlatRange> tp_partial, kv_partial;
  };
  std::vector<ParamDecl> decls_;
  std::vector<LocalParam> locals_;
  std::vector<Block> blocks_;
};

/// The gradients of a block while its backward pass writes them.
struct BlockGrads {
  Tensor flat;     // [1, numel(block)] A; or T, then vectors lie in `vectors`
  Tensor vectors;  // [1, vector_numel(block)] A, or absent

  /// As ParamLayout::fused_view.
  Tensor view(const ParamLayout& layout, ParamId first, ParamId last) const {
    return vectors && layout.decl(first).dims == 1 ? layout.packed_view(vectors, first, last)
                                                   : layout.fused_view(flat, first, last);
  }
};

}  // namespace trainer
