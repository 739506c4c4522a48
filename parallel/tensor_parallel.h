// The two crossings of tensor parallelism (Shoeybi et al. 2019; sequence parallel: Korthikanti et al. 2022). Outside, a
// rank holds the residual stream: all N tokens, or under sequence parallel its own N / size of them. Inside an
// attention or MLP it has all tokens and a part of the features. The gradient of enter is leave, and the gradient of
// leave is enter.
#pragma once
#include "parallel/communicator.h"

namespace trainer {

class TensorParallel {
 public:
  TensorParallel(Communicator& tp, bool sequence_parallel)
      : tp_(tp), sequence_parallel_(sequence_parallel && tp.size() > 1) {}

  int rank() const { return tp_.rank(); }
  int size() const { return tp_.size(); }
  Communicator& communicator() const { return tp_; }
  bool sequence_parallel() const { return sequence_parallel_; }
  /// Of n tokens, how many this rank keeps outside, and the first of them.
  std::int64_t local_rows(std::int64_t n) const { return sequence_parallel_ ? n / size() : n; }
  std::int64_t first_row(std::int64_t n) const { return sequence_parallel_ ? n / size() * rank() : 0; }

  /// local [local_rows(N), C] -> all rows [N, C]: gathered into `full` under sequence parallel, else `local` itself
  /// (`full` may be absent).
  Tensor enter(const Context& ctx, const Tensor& local, const Tensor& full) const;
  /// partial [N, C] -> sum over the ranks [local_rows(N), C]: scattered into `local` under sequence parallel, else
  /// summed in place in `partial` and returned (`local` may be absent).
  Tensor leave(const Context& ctx, const Tensor& partial, const Tensor& local) const;

 private:
  Communicator& tp_;
  bool sequence_parallel_;
};

}  // namespace trainer
