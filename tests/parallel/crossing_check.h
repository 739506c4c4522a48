// Enter and leave over several rounds, queued without waiting: rows whose content is known beforehand, on any device.
#pragma once
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "core/runtime/device.h"
#include "kernels/ops.h"
#include "parallel/tensor_parallel.h"

namespace trainer::test {

/// Tensors of small integers in float32, exact in every order of sums.
class Crossings {
 public:
  static constexpr std::int64_t kCols = 8;
  static constexpr int kRounds = 12;

  Crossings(const Context& ctx, Communicator& world, bool sequence_parallel, bool overlap, std::int64_t local_rows)
      : ctx_(ctx),
        tp_(ctx, world, sequence_parallel, overlap),
        n_(tp_.sequence_parallel() ? local_rows * world.size() : local_rows),
        local_(take(local_rows)),
        base_(take(local_rows)),
        full_(take(n_)),
        inside_(take(n_)),
        total_(take(local_rows)),
        leaving_{.partial = take(n_), .parts = take(n_), .sum = take(local_rows)} {
    std::vector<float> base;
    for (std::int64_t i = 0; i < base_.numel(); ++i) base.push_back(value(tp_.first_row(n_) * kCols + i));
    copy_to_device(ctx_, base_.data, base.data(), base_.bytes());
    synchronize(ctx_);
  }

  /// In round k of 1 .. kRounds every rank has k times the base. Inside, each adds its rank + 1 times all rows to the
  /// sum that leaves. Buffers are used again at once: a step that is late, or early, leaves wrong numbers behind.
  void run() {
    for (int round = 1; round <= kRounds; ++round) {
      ops::add(ctx_, {.a = local_, .b = base_, .out = local_});
      const Entering entering = tp_.start_enter(ctx_, local_, full_, TensorParallel::Need::whole);
      entering.for_each_range(ctx_, [&](const RowRange& rows, const Tensor& x) {
        ranges_.push_back(rows);
        ops::cast(ctx_, {.in = x, .out = rows.of(inside_)});
      });
      tp_.start_leave(ctx_, leaving_, [&](const RowRange& rows, const Tensor& y) {
        ops::cast(ctx_, {.in = rows.of(inside_), .out = y});
        for (int i = 0; i < tp_.rank(); ++i) ops::add(ctx_, {.a = y, .b = rows.of(inside_), .out = y});
      });
      whole_ = entering.whole(ctx_);
      ops::cast(ctx_, {.in = whole_, .out = inside_});
      ops::add(ctx_, {.a = total_, .b = tp_.finish_leave(ctx_, leaving_), .out = total_});
    }
  }

  void expect_right() const {
    const double ranks = tp_.size() * (tp_.size() + 1) / 2.0, rounds = kRounds * (kRounds + 1) / 2.0;
    expect(total_, tp_.first_row(n_), ranks * rounds, "sum of all rounds");
    expect(inside_, 0, kRounds, "all rows of the last round");
  }
  /// Of the first round: what for_each_range gave.
  std::vector<RowRange> first_ranges() const {
    return {ranges_.begin(), ranges_.begin() + static_cast<std::ptrdiff_t>(ranges_.size() / kRounds)};
  }
  const TensorParallel& tp() const { return tp_; }
  std::int64_t rows() const { return n_; }

 private:
  static float value(std::int64_t element) { return static_cast<float>(element * 7 % 11 - 4); }

  Tensor take(std::int64_t rows) {
    memory_.push_back(allocate(ctx_.device, rows * kCols * dtype_size(Dtype::f32), "test data"));
    return tensor_over(memory_.back().get(), Dtype::f32, rows, kCols);
  }
  void expect(const Tensor& tensor, std::int64_t first_row, double factor, const char* what) const {
    std::vector<float> values(static_cast<std::size_t>(tensor.numel()));
    copy_to_host(ctx_, values.data(), tensor.data, tensor.bytes());
    synchronize(ctx_);
    std::int64_t wrong = 0;
    for (std::int64_t i = 0; i < tensor.numel(); ++i)
      if (values[static_cast<std::size_t>(i)] != factor * value(first_row * kCols + i)) ++wrong;
    EXPECT_EQ(wrong, 0) << "elements of the " << what;
  }

  Context ctx_;
  std::vector<std::shared_ptr<void>> memory_;
  TensorParallel tp_;
  std::int64_t n_;
  Tensor local_, base_, full_, inside_, total_;
  Leaving leaving_;
  Tensor whole_;
  std::vector<RowRange> ranges_;
};

}  // namespace trainer::test
