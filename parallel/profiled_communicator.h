// Names and times collectives as ops are named and timed: the communication of the split of a step.
#pragma once
#include <memory>
#include <utility>

#include "parallel/communicator.h"

namespace trainer {

/// Passes every call on to `inner`; groups that are split off are profiled too.
class ProfiledCommunicator final : public Communicator {
 public:
  explicit ProfiledCommunicator(std::unique_ptr<Communicator> inner) : inner_(std::move(inner)) {}

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  const std::string& name() const override { return inner_->name(); }
  void all_reduce(const Context& ctx, const Tensor& data, ReduceOp op) override;
  void reduce_scatter(const Context& ctx, const Tensor& in, const Tensor& out) override;
  void reduce_scatter_into(const Context& ctx, const Tensor& in, const Tensor& sum, bool accumulate) override;
  void all_gather(const Context& ctx, const Tensor& in, const Tensor& out) override;
  void rotate(const Context& ctx, const Tensor& in, const Tensor& out, int shift) override;
  void broadcast(const Context& ctx, const Tensor& data, int root) override;
  void barrier() override { inner_->barrier(); }
  void abort() override { inner_->abort(); }
  std::unique_ptr<Communicator> split(int color, int key, const std::string& name) override;

 private:
  std::unique_ptr<Communicator> inner_;
};

}  // namespace trainer
