// Ranks as threads of one process, enough of a communicator for what the optimizer does: groups, and reductions of
// float64 in rank order.
#pragma once
#include <algorithm>
#include <barrier>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "parallel/communicator.h"

namespace trainer::test {

class ThreadCommunicator final : public Communicator {
 public:
  /// What the ranks of a group share. Every exchange is: publish, wait, read the others', wait.
  struct Group {
    Group(int size, std::string group_name)
        : barrier(size), slots(static_cast<std::size_t>(size)), name(std::move(group_name)) {}
    std::barrier<> barrier;
    std::vector<const void*> slots;
    std::string name;
  };

  ThreadCommunicator(std::shared_ptr<Group> group, int rank) : group_(std::move(group)), rank_(rank) {}

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(group_->slots.size()); }
  const std::string& name() const override { return group_->name; }

  void all_reduce(const Context& /*ctx*/, const Tensor& data, ReduceOp op) override {
    std::vector<double> result;
    exchange(data.as<double>(), [&](const std::vector<const void*>& parts) {
      for (const void* part : parts) {
        const auto* values = static_cast<const double*>(part);
        if (result.empty()) {
          result.assign(values, values + data.numel());
          continue;
        }
        for (std::size_t i = 0; i < result.size(); ++i) result[i] = combine(result[i], values[i], op);
      }
    });
    std::copy(result.begin(), result.end(), data.as<double>());
  }
  void reduce_scatter(const Context&, const Tensor&, const Tensor&) override { missing(); }
  void all_gather(const Context&, const Tensor&, const Tensor&) override { missing(); }
  void rotate(const Context&, const Tensor&, const Tensor&, int) override { missing(); }
  void broadcast(const Context&, const Tensor&, int) override { missing(); }
  void barrier() override { group_->barrier.arrive_and_wait(); }

  std::unique_ptr<Communicator> split(int color, int key, const std::string& name) override {
    struct Wish {
      int color, key, rank;
    };
    const Wish mine{color, key, rank_};
    std::vector<Wish> members;
    exchange(&mine, [&](const std::vector<const void*>& wishes) {
      for (const void* wish : wishes)
        if (static_cast<const Wish*>(wish)->color == color) members.push_back(*static_cast<const Wish*>(wish));
    });
    std::stable_sort(members.begin(), members.end(), [](const Wish& a, const Wish& b) { return a.key < b.key; });
    const auto place = std::find_if(members.begin(), members.end(), [&](const Wish& w) { return w.rank == rank_; });
    std::shared_ptr<Group> group = std::make_shared<Group>(static_cast<int>(members.size()), name);
    const std::shared_ptr<Group> offered = group;  // the first member's is taken by all
    exchange(&offered, [&](const std::vector<const void*>& groups) {
      group = *static_cast<const std::shared_ptr<Group>*>(groups[static_cast<std::size_t>(members.front().rank)]);
    });
    return std::make_unique<ThreadCommunicator>(group, static_cast<int>(place - members.begin()));
  }

 private:
  template <class Read>
  void exchange(const void* mine, const Read& read) {
    group_->slots[static_cast<std::size_t>(rank_)] = mine;
    group_->barrier.arrive_and_wait();
    read(group_->slots);
    group_->barrier.arrive_and_wait();
  }
  static double combine(double a, double b, ReduceOp op) {
    if (op == ReduceOp::sum) return a + b;
    return op == ReduceOp::max ? std::max(a, b) : std::min(a, b);
  }
  static void missing() { fail(ExitCode::other, "the ranks of this test only reduce"); }

  std::shared_ptr<Group> group_;
  int rank_;
};

/// Runs body(world communicator) on `size` threads, one a rank.
inline void run_ranks(int size, const std::function<void(std::unique_ptr<Communicator>)>& body) {
  const auto group = std::make_shared<ThreadCommunicator::Group>(size, "world");
  std::vector<std::jthread> ranks;
  ranks.reserve(static_cast<std::size_t>(size));
  for (int rank = 0; rank < size; ++rank)
    ranks.emplace_back([&, rank] { body(std::make_unique<ThreadCommunicator>(group, rank)); });
}

}  // namespace trainer::test
