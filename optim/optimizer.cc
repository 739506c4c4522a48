#include "optim/optimizer.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "core/config/resolve.h"
#include "core/runtime/device.h"
#include "core/runtime/rng.h"

namespace trainer {
namespace {

/// Elements drawn at once by initialize(): 8 MiB of float64.
constexpr std::int64_t kInitialElements = std::int64_t{1} << 20;

Dtype moments_dtype(const Config& config) {
  switch (config.optimizer.moments_dtype) {
    case MomentsDtype::bf16:
      return Dtype::bf16;
    case MomentsDtype::float32:
      return Dtype::f32;
    case MomentsDtype::automatic:
      break;
  }
  return accumulator_dtype(weight_dtype(config.precision.dtype));
}

/// Calls op(table) with run_of(segment) for all segments, as many at a time as a table holds.
template <class Segments, class RunOf, class Op>
void in_tables(const Segments& segments, const RunOf& run_of, const Op& op) {
  ops::RunTable<decltype(run_of(segments.front()))> table;
  for (const auto& segment : segments) {
    if (table.full()) {
      op(table);
      table = {};
    }
    table.add(run_of(segment));
  }
  if (table.count > 0) op(table);
}

/// Tensors of the same types with `count` elements each; nothing behind them.
ops::ShardTensors like(const ops::ShardTensors& state, std::int64_t count) {
  const auto sized = [&](const Tensor& tensor) {
    return tensor ? tensor_over(nullptr, tensor.dtype, 1, count) : Tensor{};
  };
  return {.low = sized(state.low), .master = sized(state.master), .m = sized(state.m), .v = sized(state.v)};
}

}  // namespace

Optimizer::Optimizer(const Config& config, const ParamLayout& layout, const Mesh& mesh, Arena& arena, Device device,
                     std::int64_t piece_elements)
    : layout_(layout), config_(config.optimizer), seed_(static_cast<std::uint64_t>(config.train.seed)) {
  const Dtype weights = weight_dtype(config.precision.dtype), moments = moments_dtype(config);
  const bool has_v = config_.name == OptimizerName::adamw, has_m = keeps_moments(config_);
  const auto take = [&](bool wanted, MemoryClass memory_class, std::string_view name, std::int64_t count, Dtype dtype) {
    return wanted ? arena.take(config_.offload ? MemoryClass::host : memory_class, name, 1, count, dtype) : Tensor{};
  };
  std::int64_t longest = 0;
  for (int block = 0; block < layout.num_blocks(); ++block) {
    Shard shard;
    shard.range = layout.shard(block, mesh.zero().rank(), mesh.zero().size());
    const std::int64_t n = shard.range.count;
    shard.state.low = take(weights == Dtype::bf16, MemoryClass::masters, "low bits of masters", n, Dtype::u16);
    shard.state.master = take(weights == Dtype::f16, MemoryClass::masters, "float32 masters", n, Dtype::f32);
    shard.state.m = take(has_m, MemoryClass::moments, "first moments", n, moments);
    shard.state.v = take(has_v, MemoryClass::moments, "second moments", n, moments);
    shard.segments = find_segments(block, shard.range);
    shards_.push_back(std::move(shard));
    longest = std::max(longest, n);
  }
  if (config_.offload) longest = std::min(longest, piece_elements);
  find_pieces(longest);
  if (config_.offload) stream_.emplace(device, config.comm.overlap, like(shards_.front().state, longest), arena);
}

void Optimizer::find_pieces(std::int64_t longest) {
  for (int block = 0; block < layout_.num_blocks(); ++block) {
    const Shard& shard = shards_[static_cast<std::size_t>(block)];
    for (std::int64_t first = 0; first < shard.range.count; first += longest) {
      const FlatRange part{first, std::min(longest, shard.range.count - first)};
      pieces_.push_back({.block = block,
                         .range = part,
                         .segments = find_segments(block, {shard.range.first + first, part.count}),
                         .last = first + part.count == shard.range.count});
    }
  }
}

ops::ShardTensors Optimizer::state_of(const Piece& piece) const {
  return shard_of(piece).state.flat_range(piece.range.first, piece.range.count);
}

std::vector<Optimizer::Segment> Optimizer::find_segments(int block, const FlatRange& range) const {
  std::vector<Segment> segments;
  for (const ParamId id : layout_.params(block)) {
    const ParamDecl& decl = layout_.decl(id);
    const LocalParam& local = layout_.local(id);
    const FlatRange here = intersect(local.real_range(), range);
    if (decl.trainable && here.count > 0)
      segments.push_back({id, here.first - range.first, here.first - local.offset, here.count});
  }
  return segments;
}

void Optimizer::initialize(const Context& ctx, WeightSource& weights) {
  const bool on_cpu = ctx.device.kind == DeviceKind::cpu;
  std::vector<double> scratch;  // CUDA has the workspace
  for (int block = 0; block < layout_.num_blocks(); ++block) {
    const Tensor whole = weights.acquire(ctx, block);
    for (const ParamId id : layout_.params(block)) {
      const LocalParam& local = layout_.local(id);
      const std::int64_t rows_at_once = std::max<std::int64_t>(kInitialElements / local.cols, 1);
      for (std::int64_t row = 0; row < local.real_rows; row += rows_at_once) {
        const std::int64_t rows = std::min(rows_at_once, local.real_rows - row);
        if (on_cpu) scratch.resize(static_cast<std::size_t>(rows * local.cols));
        void* memory = stage_for_output(ctx, scratch.data(), rows * local.cols * dtype_size(Dtype::f64));
        const Tensor values = tensor_over(memory, Dtype::f64, rows, local.cols);
        draw(ctx, id, row, values);
        write_values(ctx, values, local.offset + row * local.cols, whole, weights.shard(block),
                     shards_[static_cast<std::size_t>(block)]);
      }
    }
    weights.release(ctx, block);
  }
}

/// Initial values of a parameter from local row `first_row` on: values [R, C] f64.
void Optimizer::draw(const Context& ctx, ParamId id, std::int64_t first_row, const Tensor& values) const {
  const ParamDecl& decl = layout_.decl(id);
  const LocalParam& local = layout_.local(id);
  if (decl.init == ParamInit::normal)
    ops::draw_normal(ctx, {.out = values,
                           .key = mix_key(mix_key(seed_, "init"), decl.name),
                           .first_row = local.global_row + first_row,
                           .first_col = local.global_col,
                           .total_cols = decl.cols,
                           .std = decl.init_std});
  else
    ops::fill(ctx, {.x = values, .value = decl.init == ParamInit::ones ? 1.0 : 0.0});
}

/// `values` for the elements of the block from `offset` on.
void Optimizer::write_values(const Context& ctx, const Tensor& values, std::int64_t offset, const Tensor& whole,
                             const Tensor& shard_weight, const Shard& shard) const {
  const std::int64_t count = values.numel();
  const Tensor in = values.reshape(1, count);
  ops::ShardTensors everywhere;
  everywhere.weight = whole.flat_range(offset, count);
  ops::master_write(ctx, {in, everywhere});

  const FlatRange kept = intersect({offset, count}, shard.range);
  if (kept.count == 0) return;
  ops::ShardTensors exact = shard.state;
  exact.weight = shard_weight;
  ops::master_write(ctx, {in.flat_range(kept.first - offset, kept.count),
                          exact.flat_range(kept.first - shard.range.first, kept.count)});
}

void Optimizer::accumulate_norm(const Context& ctx, GradSink& grads, const Tensor& norm) {
  for (int block = 0; block < layout_.num_blocks(); ++block) {
    const Tensor grad = grads.shard(block);
    in_tables(
        shards_[static_cast<std::size_t>(block)].segments, [&](const Segment& segment) { return norm_run(segment); },
        [&](const ops::RunTable<ops::NormRun>& runs) {
          ops::squared_norm(ctx, {.x = grad, .runs = runs, .result = norm});
        });
  }
}

void Optimizer::reduce_norm(const Context& ctx, const Mesh& mesh, const Tensor& norm) {
  const Tensor sum = norm.flat_range(0, 1);
  mesh.tp().all_reduce(ctx, sum, ReduceOp::sum);
  mesh.zero().all_reduce(ctx, sum, ReduceOp::sum);
  mesh.world().all_reduce(ctx, norm.flat_range(1, 1), ReduceOp::min);
}

void Optimizer::fetch(const Context& ctx, std::size_t piece) {
  if (!stream_ || piece == pieces_.size()) return;
  stream_->fetch(ctx, state_of(pieces_[piece]), pieces_[piece].range.count);
}

void Optimizer::step(const Context& ctx, WeightSource& weights, GradSink& grads, const UpdateState* state, double lr) {
  fetch(ctx, 0);
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    const Piece& piece = pieces_[i];
    fetch(ctx, i + 1);
    ops::ShardTensors tensors = stream_ ? stream_->arrive(ctx) : state_of(piece);
    tensors.weight = weights.shard(piece.block).flat_range(piece.range.first, piece.range.count);
    tensors.grad = grads.shard(piece.block).flat_range(piece.range.first, piece.range.count);
    in_tables(
        piece.segments, [&](const Segment& segment) { return update_run(segment); },
        [&](const ops::RunTable<ops::UpdateRun>& runs) { update(ctx, tensors, runs, state, lr); });
    if (stream_) stream_->store(ctx);
    if (piece.last) weights.updated(ctx, piece.block);
  }
  if (stream_) stream_->finish(ctx);
}

ops::NormRun Optimizer::norm_run(const Segment& segment) const {
  return {.first = segment.offset,
          .count = segment.count,
          .tensor_index = segment.id,
          .counted = layout_.local(segment.id).copy_index == 0};
}

ops::UpdateRun Optimizer::update_run(const Segment& segment) const {
  const ParamDecl& decl = layout_.decl(segment.id);
  const LocalParam& local = layout_.local(segment.id);
  const std::int64_t row = segment.first / local.cols, col = segment.first % local.cols;
  return {.first = segment.offset,
          .count = segment.count,
          .weight_decay = decl.decay ? config_.weight_decay : 0.0,
          .rounding_key = mix_key(mix_key(seed_, "moments"), decl.name),
          .first_index = (local.global_row + row) * decl.cols + local.global_col + col,
          .row_gap = decl.cols - local.cols,
          .cols = local.cols,
          .first_col = col};
}

void Optimizer::update(const Context& ctx, const ops::ShardTensors& shard, const ops::RunTable<ops::UpdateRun>& runs,
                       const UpdateState* state, double lr) const {
  if (config_.name == OptimizerName::adamw)
    ops::adamw(ctx, {.shard = shard,
                     .runs = runs,
                     .state = state,
                     .lr = lr,
                     .beta1 = config_.beta1,
                     .beta2 = config_.beta2,
                     .eps = config_.eps});
  else
    ops::sgd(ctx, {.shard = shard,
                   .runs = runs,
                   .state = state,
                   .lr = lr,
                   .momentum = config_.momentum,
                   .nesterov = config_.nesterov});
}

}  // namespace trainer
