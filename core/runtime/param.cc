#include "core/runtime/param.h"

#include <algorithm>
#include <utility>

#include "core/runtime/divide.h"

namespace trainer {
namespace {

std::int64_t divide_exactly(const ParamDecl& decl, std::int64_t n, std::int64_t parts) {
  if (n % parts != 0) fail(ExitCode::config, "{}: {} does not divide by tensor_parallel_size {}", decl.name, n, parts);
  return n / parts;
}

LocalParam place_param(const ParamDecl& decl, const TpPlace& place) {
  LocalParam local;
  local.rows = decl.padded_rows > 0 ? decl.padded_rows : decl.rows;
  local.cols = decl.cols;
  switch (decl.split) {
    case ParamSplit::replicated:
      local.copies = place.size;
      local.copy_index = place.rank;
      break;
    case ParamSplit::rows:
      local.rows = divide_exactly(decl, local.rows, place.size);
      local.global_row = local.rows * place.rank;
      break;
    case ParamSplit::columns:
      local.cols = divide_exactly(decl, local.cols, place.size);
      local.global_col = local.cols * place.rank;
      break;
    case ParamSplit::kv_rows: {
      TRAINER_CHECK(place.kv_heads > 0 && (place.size % place.kv_heads == 0 || place.kv_heads % place.size == 0),
                    "{}: tensor parallel size {} and {} KV heads: one must divide the other", decl.name, place.size,
                    place.kv_heads);
      const int parts = static_cast<int>(std::min<std::int64_t>(place.size, place.kv_heads));
      local.copies = place.size / parts;
      local.copy_index = place.rank % local.copies;
      local.rows = divide_exactly(decl, local.rows, parts);
      local.global_row = local.rows * (place.rank / local.copies);
      break;
    }
  }
  local.real_rows = std::clamp<std::int64_t>(decl.rows - local.global_row, 0, local.rows);
  return local;
}

void append_range(std::vector<FlatRange>& ranges, std::int64_t first, std::int64_t count) {
  if (!ranges.empty() && ranges.back().end() == first)
    ranges.back().count += count;
  else
    ranges.push_back({first, count});
}

}  // namespace

ParamLayout::ParamLayout(std::vector<ParamDecl> decls, const TpPlace& place, int zero_size) : decls_(std::move(decls)) {
  for (ParamId id = 0; id < num_params(); ++id) {
    const ParamDecl& declared = decl(id);
    if (declared.block >= num_blocks()) blocks_.resize(static_cast<std::size_t>(declared.block) + 1);
    Block& block = blocks_[static_cast<std::size_t>(declared.block)];
    LocalParam local = place_param(declared, place);
    local.offset = declared.fused_with_previous ? block.numel : round_up(block.numel, kAlignment);
    // The gap before an aligned parameter is zero everywhere, so it may ride along in a merged range.
    const std::int64_t gap = local.offset - block.numel;
    block.numel = local.offset + local.numel();
    if (declared.dims == 1) {
      local.vector_offset =
          declared.fused_with_previous ? block.vector_numel : round_up(block.vector_numel, kAlignment);
      block.vector_numel = local.vector_offset + local.numel();
    }
    block.params.push_back(id);
    if (declared.split == ParamSplit::kv_rows) {
      if (local.copies > 1) append_range(block.kv_partial, local.offset, local.numel());
    } else if (declared.arrival == GradArrival::partial && place.size > 1) {
      TRAINER_CHECK(declared.split == ParamSplit::replicated, "{}: only a replicated parameter has a partial gradient",
                    declared.name);
      const bool follows = !block.tp_partial.empty() && block.tp_partial.back().end() == local.offset - gap;
      append_range(block.tp_partial, follows ? local.offset - gap : local.offset, local.numel() + (follows ? gap : 0));
    }
    locals_.push_back(local);
  }
  for (Block& block : blocks_) block.numel = round_up(block.numel, kAlignment * zero_size);
}

std::int64_t ParamLayout::numel() const {
  std::int64_t total = 0;
  for (const Block& block : blocks_) total += block.numel;
  return total;
}

FlatRange ParamLayout::shard(int block, int index, int parts) const {
  const std::int64_t total = numel(block);
  TRAINER_CHECK(total % parts == 0, "a block of {} elements does not split into {} parts", total, parts);
  return {total / parts * index, total / parts};
}

Tensor ParamLayout::view(const Tensor& block_flat, ParamId id) const {
  return fused_view(block_flat, id, id);
}

Tensor ParamLayout::fused_view(const Tensor& block_flat, ParamId first, ParamId last) const {
  return view_at(&LocalParam::offset, block_flat, first, last);
}

Tensor ParamLayout::packed_view(const Tensor& block_vectors, ParamId first, ParamId last) const {
  return view_at(&LocalParam::vector_offset, block_vectors, first, last);
}

Tensor ParamLayout::view_at(std::int64_t LocalParam::*offset, const Tensor& buffer, ParamId first, ParamId last) const {
  const LocalParam& start = local(first);
  std::int64_t rows = 0;
  for (ParamId id = first; id <= last; ++id) {
    TRAINER_CHECK(local(id).cols == start.cols && local(id).*offset == start.*offset + rows * start.cols,
                  "{} does not lie directly behind its neighbour", decl(id).name);
    rows += local(id).rows;
  }
  return buffer.flat_range(start.*offset, rows * start.cols).reshape(rows, start.cols);
}

std::int64_t ParamLayout::global_numel() const {
  std::int64_t total = 0;
  for (const ParamDecl& declared : decls_) total += declared.rows * declared.cols;
  return total;
}

}  // namespace trainer
