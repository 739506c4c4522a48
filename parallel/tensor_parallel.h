// The two crossings of tensor parallelism (Shoeybi et al. 2019; sequence parallel: Korthikanti et al. 2022). Outside, a
// rank holds the residual stream: all N tokens, or under sequence parallel its own N / size of them. Inside an
// attention or MLP it has all tokens and a part of the features. The gradient of enter is leave, and the gradient of
// leave is enter.
//
// Under sequence parallel both can run beside the matrix products of the layer (start_enter, start_leave). They go in
// steps: in step s = 1 .. size - 1 each rank serves the one that is s places before it, its rows in one or two chunks.
// A product works on the rows that are there while others are under way, and rows leave while others are computed. Sums
// are added in rank order and rounded once, whatever the number of steps: without overlap the same steps run one after
// another and give the same bits.
//
// Who may touch what, and when: a step is queued behind all that was computed before, so nothing that still reads a
// buffer sees it overwritten; and the computation waits for all steps of a crossing before its end, so nothing is
// overwritten while it is still sent.
#pragma once
#include <array>
#include <vector>

#include "core/runtime/streams.h"
#include "parallel/communicator.h"

namespace trainer {

/// Rows [first, first + count) of the N inside.
struct RowRange {
  std::int64_t first = 0, count = 0;

  /// The rows of a tensor; absent when it is.
  Tensor of(const Tensor& tensor) const { return tensor ? tensor.row_range(first, count) : tensor; }
};

/// All rows of a tensor of which this rank has some: the others may still be under way.
class Entering {
 public:
  /// use(rows, x) for ranges that are all N rows together, x [rows.count, C]: this rank's own, then the others as they
  /// arrive.
  template <class Use>
  void for_each_range(const Context& ctx, const Use& use) const {
    for (const Step& step : steps_) {
      if (step.arrived != nullptr) step.arrived->wait(ctx);
      use(step.rows, step.x);
    }
  }
  /// All rows in their order, [N, C]; where that need was told.
  Tensor whole(const Context& ctx) const {
    TRAINER_CHECK(whole_, "rows entered one range at a time, and are asked for in one tensor");
    if (gathered_ != nullptr) gathered_->wait(ctx);
    return whole_;
  }

 private:
  friend class TensorParallel;
  struct Step {
    RowRange rows;
    Tensor x;
    const Event* arrived;  // null: here from the start
  };
  std::vector<Step> steps_;
  Tensor whole_;
  const Event* gathered_ = nullptr;
};

/// The buffers of start_leave.
struct Leaving {
  Tensor partial;  // [N, C]: what this rank computes for the others; without sequence parallel all of it, and the sum
  Tensor parts;    // [N, C]: what each rank computed of this rank's rows, in rank order; sequence parallel only
  Tensor sum;      // [local N, C]; sequence parallel only
};

class TensorParallel {
 public:
  /// `overlap`: what start_enter and start_leave communicate runs beside `compute`.
  TensorParallel(const Context& compute, Communicator& tp, bool sequence_parallel, bool overlap);

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

  /// What will be asked of the rows that enter: ranges alone, or all of them in one tensor as well.
  enum class Need : std::uint8_t { ranges, whole };
  /// enter, beside what is queued on ctx.stream from now on. `local` must stay until all ranges were asked for, and
  /// whole() where it is needed. The result serves until the third start_enter after this one.
  Entering start_enter(const Context& ctx, const Tensor& local, const Tensor& full, Need need);

  /// leave, beside what is queued on ctx.stream from now on until finish_leave; one at a time. produce(rows, y) queues
  /// what computes y [rows.count, C], this rank's part of the sum; the ranges are all N rows together, those of other
  /// ranks first.
  template <class Produce>
  void start_leave(const Context& ctx, const Leaving& to, const Produce& produce) {
    if (!sequence_parallel_) {
      produce(RowRange{0, to.partial.rows}, to.partial);
      return reduce(ctx, to.partial);
    }
    for (int step = 0; step < steps(to.partial.rows); ++step) {
      const RowRange rows = rows_sent(to.partial.rows, step);
      produce(rows, rows.of(to.partial));
      send(ctx, to, step);
    }
    const RowRange own = rows_of_rank(to.partial.rows, rank());
    produce(own, own.of(to.parts));
  }
  /// The sum [local_rows(N), C] of what start_leave(ctx, to, ...) began.
  Tensor finish_leave(const Context& ctx, const Leaving& to);

  /// As CommQueue::set_overlap.
  void set_overlap(const Context& compute, bool overlap) { queue_.set_overlap(compute, overlap); }

 private:
  /// Steps of a crossing of n tokens, and what this rank sends and receives in each.
  int steps(std::int64_t n) const { return (size() - 1) * chunks(n); }
  int chunks(std::int64_t n) const;
  int shift(std::int64_t n, int step) const { return 1 + step / chunks(n); }
  RowRange rows_of_rank(std::int64_t n, int rank) const { return {n / size() * rank, n / size()}; }
  RowRange chunk_of(std::int64_t n, int step, int rank) const;
  RowRange rows_sent(std::int64_t n, int step) const;
  RowRange rows_received(std::int64_t n, int step) const;
  void send(const Context& ctx, const Leaving& to, int step);
  void reduce(const Context& ctx, const Tensor& partial);

  Communicator& tp_;
  bool sequence_parallel_;
  CommQueue queue_;
  /// Of the last three that entered, in the queue of communication: one a step, and one behind all.
  std::array<std::vector<Event>, 3> arrived_;
  std::size_t entered_ = 0;
  Event left_;  // behind what was last sent or reduced
};

}  // namespace trainer
