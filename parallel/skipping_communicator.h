// Leaves collectives out, to measure what they cost a step. Results are wrong while it does.
#pragma once
#include <memory>
#include <utility>

#include "parallel/communicator.h"

namespace trainer {

/// While *skips is true nothing is communicated; groups that are split off follow the same switch, which is the same on
/// all ranks.
class SkippingCommunicator final : public Communicator {
 public:
  SkippingCommunicator(std::unique_ptr<Communicator> inner, std::shared_ptr<const bool> skips)
      : inner_(std::move(inner)), skips_(std::move(skips)) {}

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  const std::string& name() const override { return inner_->name(); }
  void all_reduce(const Context& ctx, const Tensor& data, ReduceOp op) override {
    if (!*skips_) inner_->all_reduce(ctx, data, op);
  }
  void reduce_scatter(const Context& ctx, const Tensor& in, const Tensor& out) override {
    if (!*skips_) inner_->reduce_scatter(ctx, in, out);
  }
  void reduce_scatter_into(const Context& ctx, const Tensor& in, const Tensor& sum, bool accumulate) override {
    if (!*skips_) inner_->reduce_scatter_into(ctx, in, sum, accumulate);
  }
  void all_gather(const Context& ctx, const Tensor& in, const Tensor& out) override {
    if (!*skips_) inner_->all_gather(ctx, in, out);
  }
  void rotate(const Context& ctx, const Tensor& in, const Tensor& out, int shift) override {
    if (!*skips_) inner_->rotate(ctx, in, out, shift);
  }
  void broadcast(const Context& ctx, const Tensor& data, int root) override {
    if (!*skips_) inner_->broadcast(ctx, data, root);
  }
  void barrier() override {
    if (!*skips_) inner_->barrier();
  }
  void abort() override { inner_->abort(); }
  std::unique_ptr<Communicator> split(int color, int key, const std::string& name) override {
    return std::make_unique<SkippingCommunicator>(inner_->split(color, key, name), skips_);
  }

 private:
  std::unique_ptr<Communicator> inner_;
  std::shared_ptr<const bool> skips_;
};

}  // namespace trainer
