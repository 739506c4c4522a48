// Where a block gets its weights from. The seam for ZeRO-3, which gathers a block before it is used and drops it
// afterwards.
#pragma once
#include <vector>

#include "core/runtime/arena.h"
#include "core/runtime/param.h"
#include "parallel/mesh.h"

namespace trainer {

class WeightSource {
 public:
  virtual ~WeightSource() = default;
  /// The flat weights [1, numel(block)] T of a block, valid until release().
  virtual Tensor acquire(const Context& ctx, int block) = 0;
  virtual void release(const Context& ctx, int block) = 0;
  /// This rank's part (its ZeRO shard; the whole block under stage 0), which the optimizer writes.
  virtual Tensor shard(int block) = 0;
  /// The optimizer has written shard(block) on every rank: make the block whole again where it is kept whole.
  virtual void updated(const Context& ctx, int block) = 0;
};

/// Every rank keeps the weights of every block (ZeRO 0 and 1). After an update the shards are gathered over the ZeRO
/// group.
class ResidentWeights final : public WeightSource {
 public:
  ResidentWeights(const ParamLayout& layout, const Mesh& mesh, Dtype dtype, Arena& arena);
  Tensor acquire(const Context& ctx, int block) override;
  void release(const Context& ctx, int block) override;
  Tensor shard(int block) override;
  void updated(const Context& ctx, int block) override;

 private:
  const ParamLayout& layout_;
  const Mesh& mesh_;
  std::vector<Tensor> blocks_;
};

}  // namespace trainer
