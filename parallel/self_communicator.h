// One process alone: every collective is a copy at most.
#pragma once
#include "parallel/communicator.h"

namespace trainer {

class SelfCommunicator final : public Communicator {
 public:
  explicit SelfCommunicator(std::string name) : name_(std::move(name)) {}

  int rank() const override { return 0; }
  int size() const override { return 1; }
  const std::string& name() const override { return name_; }
  void all_reduce(const Context& ctx, const Tensor& data, ReduceOp op) override;
  void reduce_scatter(const Context& ctx, const Tensor& in, const Tensor& out) override;
  void all_gather(const Context& ctx, const Tensor& in, const Tensor& out) override;
  void rotate(const Context& ctx, const Tensor& in, const Tensor& out, int shift) override;
  void broadcast(const Context& ctx, const Tensor& data, int root) override;
  void barrier() override {}
  std::unique_ptr<Communicator> split(int color, int key, const std::string& name) override;

 private:
  std::string name_;
};

}  // namespace trainer
