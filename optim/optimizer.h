// The optimizer: flat shards of parameters. It knows no layers; what it does with an element follows from the
// parameter's declaration.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "core/config/config.h"
#include "core/runtime/arena.h"
#include "core/runtime/param.h"
#include "kernels/ops.h"
#include "optim/state_stream.h"
#include "parallel/grad_sink.h"
#include "parallel/mesh.h"
#include "parallel/weight_source.h"

namespace trainer {

/// Holds, for every block, the state of this rank's ZeRO shard: low bits (bf16) or float32 masters (fp16), and the
/// moments. Weights and gradients belong to the weight source and the gradient sink, and are seen here as shards. With
/// optimizer.offload the state lives in the host's memory and is brought to the device for the update, piece by piece.
///
/// One step: accumulate_norm, reduce_norm, ops::prepare_update (the trainer calls it: it owns the UpdateState), step.
class Optimizer {
 public:
  /// Elements of a piece of offloaded state: long enough for a link to reach its rate, 0.3 GB on the device for two
  /// pieces with float32 moments.
  static constexpr std::int64_t kPieceElements = std::int64_t{1} << 24;

  /// Takes the state from the classes masters and moments of `arena` (host when offloaded), which fills it with zeros.
  /// `device`: where it trains. `layout` must outlive the optimizer.
  Optimizer(const Config& config, const ParamLayout& layout, const Mesh& mesh, Arena& arena, Device device = {},
            std::int64_t piece_elements = kPieceElements);

  /// Draws the initial values by global element index: every weight of the block, and the exact values of this rank's
  /// shard, so that the model is the same in any layout. Drawn where it trains, with the same bits on every device.
  /// Once, before the first step: padding keeps the zeros that it was allocated with.
  void initialize(const Context& ctx, WeightSource& weights);

  /// norm [1, 2] f64 += what this rank knows: the sum of squares of its shard (a parameter that several tp ranks hold
  /// is counted by copy 0 alone), and the least ParamId with a non-finite gradient (all copies look). The caller sets
  /// it to (0, inf) first. Padding and parameters that are not trainable take no part.
  void accumulate_norm(const Context& ctx, GradSink& grads, const Tensor& norm);
  /// norm becomes the same on every rank: the sum over the tp ranks and the ranks that share a ZeRO state (other
  /// data-parallel ranks hold the same reduced gradients and must not count twice), the first bad tensor over all.
  static void reduce_norm(const Context& ctx, const Mesh& mesh, const Tensor& norm);

  /// Applies the update that prepare_update decided (nothing when state->skipped), then lets the weight source make the
  /// blocks whole again. `lr` is that of this step.
  void step(const Context& ctx, WeightSource& weights, GradSink& grads, const UpdateState* state, double lr);

  /// The state of a block's shard: low, master, m and v, absent where this run has none. `weight` and `grad` are
  /// absent: the caller puts weight_source.shard(block) beside them to read or write exact values. When offloaded it is
  /// pinned host memory, which ops of the device can use too; it is up to date for what is queued after step().
  const ops::ShardTensors& tensors(int block) const { return shards_[static_cast<std::size_t>(block)].state; }
  /// Which elements of the block these are.
  FlatRange range(int block) const { return shards_[static_cast<std::size_t>(block)].range; }
  /// Whether tensors() are in the host's memory.
  bool offloaded() const { return stream_.has_value(); }

 private:
  /// The part of one trainable parameter that lies in this shard, without padding rows.
  struct Segment {
    ParamId id = 0;
    std::int64_t offset = 0;  // from the start of the shard
    std::int64_t first = 0;   // element of the local parameter, row by row
    std::int64_t count = 0;
  };
  struct Shard {
    FlatRange range;
    ops::ShardTensors state;
    std::vector<Segment> segments;
  };
  /// What is updated at once: a whole shard, or a part of it that fits into the stream.
  struct Piece {
    int block = 0;
    FlatRange range;  // of the shard
    std::vector<Segment> segments;
    bool last = false;  // of its block
  };

  void find_pieces(std::int64_t longest);
  const Shard& shard_of(const Piece& piece) const { return shards_[static_cast<std::size_t>(piece.block)]; }
  ops::ShardTensors state_of(const Piece& piece) const;
  void fetch(const Context& ctx, std::size_t piece);
  std::vector<Segment> find_segments(int block, const FlatRange& range) const;
  void draw(const Context& ctx, ParamId id, std::int64_t first_row, const Tensor& values) const;
  void write_values(const Context& ctx, const Tensor& values, std::int64_t offset, const Tensor& whole,
                    const Tensor& shard_weight, const Shard& shard) const;
  ops::NormRun norm_run(const Segment& segment) const;
  ops::UpdateRun update_run(const Segment& segment) const;
  void update(const Context& ctx, const ops::ShardTensors& shard, const ops::RunTable<ops::UpdateRun>& runs,
              const UpdateState* state, double lr) const;

  const ParamLayout& layout_;
  OptimizerConfig config_;
  std::uint64_t seed_;
  std::vector<Shard> shards_;
  std::vector<Piece> pieces_;          // block by block
  std::optional<StateStream> stream_;  // when offloaded
};

}  // namespace trainer
