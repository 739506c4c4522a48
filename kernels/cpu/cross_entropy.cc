// Vocabulary-parallel cross-entropy in two halves, with the exchange of the statistics between them.
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

#include "kernels/cpu/common.h"

namespace trainer::ops::cpu {
namespace {

void check_common(const Tensor& logits, const Tensor& targets, std::int64_t valid_cols) {
  check_shape(targets, "cross_entropy: targets", Dtype::i32, 1, logits.rows);
  TRAINER_CHECK(valid_cols >= 0 && valid_cols <= logits.cols, "cross_entropy: {} valid columns of {}", valid_cols,
                logits.cols);
}

/// What the columns of all ranks say of one token.
struct Softmax {
  double max, sum, lse, target_logit;
};

template <class A>
Softmax combine(const Rows<A>& stats, int parts, std::int64_t tokens, std::int64_t n) {
  Softmax all{-std::numeric_limits<double>::infinity(), 0, 0, 0};
  for (int p = 0; p < parts; ++p) all.max = std::max(all.max, static_cast<double>(stats[p * tokens + n][0]));
  for (int p = 0; p < parts; ++p) {
    const A* part = stats[p * tokens + n];
    all.sum += static_cast<double>(part[1]) * std::exp(static_cast<double>(part[0]) - all.max);
    all.target_logit += static_cast<double>(part[2]);
  }
  all.lse = all.max + std::log(all.sum);
  return all;
}

/// Turns one row of logits into its gradient. `scale` is 0 for an ignored target.
template <class T>
void gradient_row(T* row, const CrossEntropyFinishArgs& args, const Softmax& all, std::int64_t target, double scale) {
  using A = Acc<T>;
  std::int64_t padding_from = 0;
  if (scale != 0.0) {
    const auto max = static_cast<A>(all.max);
    const auto factor = static_cast<A>(scale * (1.0 + 2.0 * args.z_loss * all.lse) / all.sum);
    const std::int64_t target_col = target - args.first_col;
    for (std::int64_t c = 0; c < args.valid_cols; ++c) {
      const A softmax_part = factor * std::exp(widen(row[c]) - max);
      row[c] = narrow<T>(c == target_col ? softmax_part - static_cast<A>(scale) : softmax_part);
    }
    padding_from = args.valid_cols;
  }
  std::fill(row + padding_from, row + args.logits.cols, T{});
}

}  // namespace

void cross_entropy_stats(const Context&, const CrossEntropyStatsArgs& args) {
  check_common(args.logits, args.targets, args.valid_cols);
  check_shape(args.stats, "cross_entropy_stats: stats", accumulator_dtype(args.logits.dtype), args.logits.rows, 3);
  const auto* targets = args.targets.as<std::int32_t>();
  visit_float(args.logits.dtype, [&]<class T>(TypeTag<T>) {
    using A = Acc<T>;
    const Rows<T> logits = rows_of<T>(args.logits);
    const Rows<A> stats = rows_of<A>(args.stats);
    parallel_for(args.logits.rows, 4 * args.valid_cols, [&](std::int64_t n) {
      const T* row = logits[n];
      A max = -std::numeric_limits<A>::infinity();
      for (std::int64_t c = 0; c < args.valid_cols; ++c) max = std::max(max, widen(row[c]));
      double sum = 0;
      for (std::int64_t c = 0; c < args.valid_cols; ++c) sum += static_cast<double>(std::exp(widen(row[c]) - max));
      const std::int64_t col = targets[n] - args.first_col;
      const bool here = targets[n] != kIgnoredTarget && col >= 0 && col < args.valid_cols;
      stats[n][0] = max;
      stats[n][1] = static_cast<A>(sum);
      stats[n][2] = here ? widen(row[col]) : A{0};
    });
  });
}

void cross_entropy_finish(const Context&, const CrossEntropyFinishArgs& args) {
  const std::int64_t tokens = args.logits.rows;
  check_common(args.logits, args.targets, args.valid_cols);
  check_shape(args.stats, "cross_entropy_finish: stats", accumulator_dtype(args.logits.dtype), args.parts * tokens, 3);
  check_shape(args.sums, "cross_entropy_finish: sums", Dtype::f64, 1, 3);
  const auto* targets = args.targets.as<std::int32_t>();
  const double scale = args.grad_scale * (args.state != nullptr ? args.state->loss_scale : 1.0);
  std::vector<double> losses(static_cast<std::size_t>(tokens)), z_losses(static_cast<std::size_t>(tokens));
  visit_float(args.logits.dtype, [&]<class T>(TypeTag<T>) {
    using A = Acc<T>;
    const Rows<T> logits = rows_of<T>(args.logits);
    const Rows<A> stats = rows_of<A>(args.stats);
    parallel_for(tokens, 4 * args.logits.cols, [&](std::int64_t n) {
      const bool ignored = targets[n] == kIgnoredTarget;
      const Softmax all = combine(stats, args.parts, tokens, n);
      if (!ignored) {
        losses[static_cast<std::size_t>(n)] = all.lse - all.target_logit;
        z_losses[static_cast<std::size_t>(n)] = args.z_loss * all.lse * all.lse;
      }
      if (args.backward) gradient_row(logits[n], args, all, targets[n], ignored ? 0.0 : scale);
    });
  });
  // In the order of the tokens, whatever the number of threads.
  auto* sums = args.sums.as<double>();
  for (std::int64_t n = 0; n < tokens; ++n) {
    sums[0] += losses[static_cast<std::size_t>(n)];
    sums[1] += z_losses[static_cast<std::size_t>(n)];
    sums[2] += targets[n] == kIgnoredTarget ? 0.0 : 1.0;
  }
}

void cross_entropy(const Context& ctx, const CrossEntropyArgs& args) {
  const Dtype dtype = accumulator_dtype(args.logits.dtype);
  std::vector<std::byte> memory(static_cast<std::size_t>(args.logits.rows * 3 * dtype_size(dtype)));
  const Tensor stats = tensor_over(memory.data(), dtype, args.logits.rows, 3);
  cross_entropy_stats(ctx,
                      {.logits = args.logits, .targets = args.targets, .stats = stats, .valid_cols = args.valid_cols});
  cross_entropy_finish(ctx, {.logits = args.logits,
                             .targets = args.targets,
                             .stats = stats,
                             .sums = args.sums,
                             .valid_cols = args.valid_cols,
                             .grad_scale = args.grad_scale,
                             .z_loss = args.z_loss,
                             .state = args.state,
                             .backward = args.backward});
}

}  // namespace trainer::ops::cpu
