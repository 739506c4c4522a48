// Stands for one rank of a job that does not run: a mesh of any size can be laid out in one process, to count memory.
#pragma once
#include "parallel/communicator.h"
#include "parallel/mesh.h"

namespace trainer {

/// The groups that Mesh splits off have the sizes of `shape`; every operation between ranks is refused.
class PlanCommunicator final : public Communicator {
 public:
  /// World rank `rank` of a job of shape.tp x shape.dp ranks.
  PlanCommunicator(int rank, const MeshShape& shape) : PlanCommunicator("world", rank, shape.tp * shape.dp, shape) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  const std::string& name() const override { return name_; }
  void all_reduce(const Context& ctx, const Tensor& data, ReduceOp op) override;
  void reduce_scatter(const Context& ctx, const Tensor& in, const Tensor& out) override;
  void all_gather(const Context& ctx, const Tensor& in, const Tensor& out) override;
  void rotate(const Context& ctx, const Tensor& in, const Tensor& out, int shift) override;
  void broadcast(const Context& ctx, const Tensor& data, int root) override;
  void barrier() override;
  /// `key` is the rank in the new group, as Mesh has it.
  std::unique_ptr<Communicator> split(int color, int key, const std::string& name) override;

 private:
  PlanCommunicator(std::string name, int rank, int size, const MeshShape& shape)
      : name_(std::move(name)), rank_(rank), size_(size), shape_(shape) {}
  [[noreturn]] void refuse(const char* operation) const;

  std::string name_;
  int rank_;
  int size_;
  MeshShape shape_;
};

}  // namespace trainer
