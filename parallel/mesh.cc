#include "parallel/mesh.h"

#include <utility>

namespace trainer {

Mesh::Mesh(std::unique_ptr<Communicator> world, const MeshShape& shape) : shape_(shape), world_(std::move(world)) {
  if (shape.tp < 1 || shape.dp < 1 || shape.tp * shape.dp != world_->size())
    fail(ExitCode::config,
         "tensor_parallel_size {} x data_parallel_size {} = {} does not match the {} ranks of this job", shape.tp,
         shape.dp, shape.tp * shape.dp, world_->size());
  if (shape.zero < 1 || shape.dp % shape.zero != 0)
    fail(ExitCode::config, "zero_group_size {} does not divide data_parallel_size {}", shape.zero, shape.dp);
  if (shape.kv_replicas < 1 || shape.tp % shape.kv_replicas != 0)
    fail(ExitCode::config, "{} copies of each KV head do not divide tensor_parallel_size {}", shape.kv_replicas,
         shape.tp);
  const int rank = world_->rank();
  const int tp_rank = rank % shape.tp;
  const int dp_rank = rank / shape.tp;
  tp_ = world_->split(dp_rank, tp_rank, "tp");
  dp_ = world_->split(tp_rank, dp_rank, "dp");
  zero_ = dp_->split(dp_rank / shape.zero, dp_rank % shape.zero, "zero");
  zero_replicas_ = dp_->split(dp_rank % shape.zero, dp_rank / shape.zero, "zero_replicas");
  kv_replicas_ = tp_->split(tp_rank / shape.kv_replicas, tp_rank % shape.kv_replicas, "kv_replicas");
}

}  // namespace trainer
