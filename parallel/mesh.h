// Who talks to whom: ranks are numbered with tp fastest, then cp, pp and dp (cp and pp are 1 in this version).
#pragma once
#include <memory>

#include "parallel/communicator.h"

namespace trainer {

struct MeshShape {
  int tp = 1;
  int dp = 1;
  int zero = 1;         // ranks that share one optimizer state: 1 under ZeRO stage 0; divides dp
  int kv_replicas = 1;  // tp ranks that hold the same KV heads: tp / num_key_value_heads when that is above 1
};

/// The groups of one rank. Collective over `world`.
class Mesh {
 public:
  /// Throws Error(config) when tp x dp is not the size of `world`.
  Mesh(std::unique_ptr<Communicator> world, const MeshShape& shape);

  const MeshShape& shape() const { return shape_; }
  Communicator& world() const { return *world_; }
  Communicator& tp() const { return *tp_; }
  Communicator& dp() const { return *dp_; }
  /// Consecutive dp ranks that share one optimizer state (size shape().zero).
  Communicator& zero() const { return *zero_; }
  /// Ranks with the same part of the state in the other ZeRO groups (size dp / zero).
  Communicator& zero_replicas() const { return *zero_replicas_; }
  /// Ranks of the tp group that hold the same KV heads.
  Communicator& kv_replicas() const { return *kv_replicas_; }

 private:
  MeshShape shape_;
  std::unique_ptr<Communicator> world_, tp_, dp_, zero_, zero_replicas_, kv_replicas_;
};

}  // namespace trainer
