#include "parallel/tensor_parallel.h"

#include "kernels/ops.h"

namespace trainer {
namespace {

/// A rank's rows go in two chunks where they are many: the first is there sooner, and less is left behind the last
/// product. Smaller ones would leave multiprocessors without work.
constexpr int kMostChunks = 2;
constexpr std::int64_t kLeastChunkRows = 1024;

}  // namespace

TensorParallel::TensorParallel(const Context& compute, Communicator& tp, bool sequence_parallel, bool overlap)
    : tp_(tp),
      sequence_parallel_(sequence_parallel && tp.size() > 1),
      queue_(compute, overlap && tp.size() > 1),
      left_(compute.device) {
  if (!sequence_parallel_) return;
  for (std::vector<Event>& arrived : arrived_)
    for (int i = 0; i <= (size() - 1) * kMostChunks; ++i) arrived.emplace_back(compute.device);
}

Tensor TensorParallel::enter(const Context& ctx, const Tensor& local, const Tensor& full) const {
  if (!sequence_parallel_) return local;
  tp_.all_gather(ctx, local, full);
  return full;
}

Tensor TensorParallel::leave(const Context& ctx, const Tensor& partial, const Tensor& local) const {
  if (sequence_parallel_) {
    tp_.reduce_scatter(ctx, partial, local);
    return local;
  }
  if (size() > 1) tp_.all_reduce(ctx, partial, ReduceOp::sum);
  return partial;
}

int TensorParallel::chunks(std::int64_t n) const {
  return n / size() >= kMostChunks * kLeastChunkRows ? kMostChunks : 1;
}

RowRange TensorParallel::chunk_of(std::int64_t n, int step, int rank) const {
  const RowRange all = rows_of_rank(n, rank);
  const int count = chunks(n), chunk = step % count;
  const std::int64_t first = all.count * chunk / count;
  return {all.first + first, all.count * (chunk + 1) / count - first};
}

RowRange TensorParallel::rows_sent(std::int64_t n, int step) const {
  return chunk_of(n, step, (rank() + size() - shift(n, step)) % size());
}

RowRange TensorParallel::rows_received(std::int64_t n, int step) const {
  return chunk_of(n, step, (rank() + shift(n, step)) % size());
}

Entering TensorParallel::start_enter(const Context& ctx, const Tensor& local, const Tensor& full, Need need) {
  Entering entering;
  const std::int64_t n = sequence_parallel_ ? full.rows : local.rows;
  entering.steps_.push_back({{first_row(n), local_rows(n)}, local, nullptr});
  if (!sequence_parallel_) {
    entering.whole_ = local;
    return entering;
  }
  std::vector<Event>& arrived = arrived_[entered_++ % arrived_.size()];
  const Context& comm = queue_.after(ctx);
  for (int step = 0; step < steps(n); ++step) {
    Event& here = arrived[static_cast<std::size_t>(step)];
    const RowRange mine = chunk_of(n, step, rank()), theirs = rows_received(n, step);
    tp_.rotate(comm, local.row_range(mine.first - first_row(n), mine.count), theirs.of(full), shift(n, step));
    here.record(comm);
    entering.steps_.push_back({theirs, theirs.of(full), &here});
  }
  if (need == Need::ranges) return entering;
  tp_.rotate(comm, local, rows_of_rank(n, rank()).of(full), 0);
  arrived.back().record(comm);
  entering.whole_ = full;
  entering.gathered_ = &arrived.back();
  return entering;
}

void TensorParallel::send(const Context& ctx, const Leaving& to, int step) {
  const std::int64_t n = to.partial.rows;
  const Context& comm = queue_.after(ctx);
  tp_.rotate(comm, rows_sent(n, step).of(to.partial), rows_received(n, step).of(to.parts), shift(n, step));
  left_.record(comm);
}

void TensorParallel::reduce(const Context& ctx, const Tensor& partial) {
  if (size() == 1) return;
  const Context& comm = queue_.after(ctx);
  tp_.all_reduce(comm, partial, ReduceOp::sum);
  left_.record(comm);
}

Tensor TensorParallel::finish_leave(const Context& ctx, const Leaving& to) {
  if (size() == 1) return to.partial;
  left_.wait(ctx);
  if (!sequence_parallel_) return to.partial;
  ops::sum_parts(ctx, {.parts = to.parts, .out = to.sum});
  return to.sum;
}

}  // namespace trainer
