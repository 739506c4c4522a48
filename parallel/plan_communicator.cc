#include "parallel/plan_communicator.h"

#include "core/runtime/check.h"

namespace trainer {
namespace {

int group_size(const MeshShape& shape, const std::string& name) {
  if (name == "tp") return shape.tp;
  if (name == "dp") return shape.dp;
  if (name == "zero") return shape.zero;
  if (name == "zero_replicas") return shape.dp / shape.zero;
  if (name == "kv_replicas") return shape.kv_replicas;
  fail(ExitCode::other, "a plan knows no group '{}'", name);
}

}  // namespace

void PlanCommunicator::refuse(const char* operation) const {
  fail(ExitCode::other, "{} in group '{}' of a job that is only planned", operation, name_);
}

void PlanCommunicator::all_reduce(const Context& /*ctx*/, const Tensor& /*data*/, ReduceOp /*op*/) {
  refuse("all_reduce");
}

void PlanCommunicator::reduce_scatter(const Context& /*ctx*/, const Tensor& /*in*/, const Tensor& /*out*/) {
  refuse("reduce_scatter");
}

void PlanCommunicator::all_gather(const Context& /*ctx*/, const Tensor& /*in*/, const Tensor& /*out*/) {
  refuse("all_gather");
}

void PlanCommunicator::rotate(const Context& /*ctx*/, const Tensor& /*in*/, const Tensor& /*out*/, int /*shift*/) {
  refuse("rotate");
}

void PlanCommunicator::broadcast(const Context& /*ctx*/, const Tensor& /*data*/, int /*root*/) {
  refuse("broadcast");
}

void PlanCommunicator::barrier() {
  refuse("barrier");
}

std::unique_ptr<Communicator> PlanCommunicator::split(int /*color*/, int key, const std::string& name) {
  const int size = group_size(shape_, name);
  TRAINER_CHECK(key >= 0 && key < size, "rank {} in group '{}' of {}", key, name, size);
  return std::unique_ptr<Communicator>(new PlanCommunicator(name, key, size, shape_));
}

}  // namespace trainer
