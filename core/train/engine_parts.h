// The memory of one rank: everything that lives in its arena. Made twice, over an arena that measures and over the real
// one, and by `trainer plan` over the first kind alone.
#pragma once
#include <memory>

#include "core/config/config.h"
#include "core/model/transformer.h"
#include "optim/optimizer.h"
#include "parallel/mesh.h"

namespace trainer {

struct EngineParts {
  EngineParts(const Config& config, const Mesh& mesh, CommQueue& queue, Arena& arena);
  Transformer model;
  std::unique_ptr<WeightSource> weights;
  ReducingGradSink sink;
  Optimizer optimizer;
  Tensor ints;   // a micro-batch on the device: ids, targets, positions, sequence starts
  Batch batch;   // its parts, with all the room there is for starts
  Tensor sums;   // [1, 3] f64: loss, z-loss, target tokens of this rank, then of all
  Tensor norm;   // [1, 2] f64: sum of squares, first bad tensor
  Tensor state;  // bytes of the UpdateState
};

/// The mesh that a resolved configuration asks for.
MeshShape mesh_shape(const Config& config);

}  // namespace trainer
