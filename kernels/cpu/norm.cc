// LayerNorm and RMSNorm of rows, and RMSNorm of heads: one row's mathematics, used by all four ops.
#include <cmath>

#include "kernels/cpu/common.h"

namespace trainer::ops::cpu {
namespace {

template <class A>
struct Statistics {
  A mean, rstd;  // mean is 0 for RMSNorm: its formulas are then those of LayerNorm
};

/// Mean and 1 / sqrt(variance + eps) of x[0 .. n); two passes, so that a large mean costs no digits.
template <class T>
Statistics<Acc<T>> row_statistics(NormKind kind, double eps, const T* x, std::int64_t n) {
  using A = Acc<T>;
  const A count = static_cast<A>(n);
  A mean{0};
  if (kind == NormKind::layernorm) {
    A sum{0};
#pragma omp simd reduction(+ : sum)
    for (std::int64_t c = 0; c < n; ++c) sum += widen(x[c]);
    mean = sum / count;
  }
  A squares{0};
#pragma omp simd reduction(+ : squares)
  for (std::int64_t c = 0; c < n; ++c) squares += (widen(x[c]) - mean) * (widen(x[c]) - mean);
  return {mean, A{1} / std::sqrt(squares / count + static_cast<A>(eps))};
}

/// out = (x - mean) * rstd * weight (+ bias)
template <class T>
void normalise_row(Statistics<Acc<T>> stats, const T* x, const T* weight, const T* bias, T* out, std::int64_t n) {
  for (std::int64_t c = 0; c < n; ++c) {
    const Acc<T> normalised = (widen(x[c]) - stats.mean) * stats.rstd * widen(weight[c]);
    out[c] = narrow<T>(bias != nullptr ? normalised + widen(bias[c]) : normalised);
  }
}

/// With xhat = (x - mean) * rstd and g = dout * weight:
///   dx = dresidual + rstd * (g - mean(g) - xhat * mean(g * xhat)), for RMSNorm without the term mean(g).
/// dx may be dout or dresidual.
template <class T>
void backward_row(NormKind kind, Statistics<Acc<T>> stats, const T* dout, const T* x, const T* weight,
                  const T* dresidual, T* dx, std::int64_t n) {
  using A = Acc<T>;
  A sum_g{0}, sum_g_xhat{0};
#pragma omp simd reduction(+ : sum_g, sum_g_xhat)
  for (std::int64_t c = 0; c < n; ++c) {
    const A g = widen(dout[c]) * widen(weight[c]);
    sum_g += g;
    sum_g_xhat += g * ((widen(x[c]) - stats.mean) * stats.rstd);
  }
  const A count = static_cast<A>(n);
  const A mean_g = kind == NormKind::layernorm ? sum_g / count : A{0};
  const A mean_g_xhat = sum_g_xhat / count;
  for (std::int64_t c = 0; c < n; ++c) {
    const A g = widen(dout[c]) * widen(weight[c]);
    const A xhat = (widen(x[c]) - stats.mean) * stats.rstd;
    const A through = stats.rstd * (g - mean_g - xhat * mean_g_xhat);
    dx[c] = narrow<T>(dresidual != nullptr ? widen(dresidual[c]) + through : through);
  }
}

std::int64_t head_size(std::int64_t cols, std::int64_t heads) {
  TRAINER_CHECK(heads > 0 && cols % heads == 0, "head_norm: {} columns in {} heads", cols, heads);
  return cols / heads;
}

}  // namespace

void add_norm_forward(const Context&, const AddNormForwardArgs& args) {
  const std::int64_t tokens = args.x.rows, width = args.x.cols;
  const bool layernorm = args.kind == NormKind::layernorm;
  check_shape(args.out, "add_norm_forward: out", args.x.dtype, tokens, width);
  if (args.branch) check_shape(args.branch, "add_norm_forward: branch", args.x.dtype, tokens, width);
  TRAINER_CHECK(args.sum || !args.branch, "add_norm_forward: a branch needs a sum");
  if (args.sum) check_shape(args.sum, "add_norm_forward: sum", args.x.dtype, tokens, width);
  visit_float(args.x.dtype, [&]<class T>(TypeTag<T>) {
    using A = Acc<T>;
    const Rows<T> x = rows_of<T>(args.x), branch = rows_of<T>(args.branch ? args.branch : args.x);
    const Rows<T> sum = rows_of<T>(args.sum ? args.sum : args.x), out = rows_of<T>(args.out);
    const T* weight = vector_of<T>(args.weight, "add_norm_forward: weight", width);
    const T* bias = vector_of<T>(args.bias, "add_norm_forward: bias", width);
    A* means = layernorm ? vector_of<A>(args.mean, "add_norm_forward: mean", tokens) : nullptr;
    A* rstds = vector_of<A>(args.rstd, "add_norm_forward: rstd", tokens);
    TRAINER_CHECK(weight != nullptr && rstds != nullptr && (means != nullptr) == layernorm,
                  "add_norm_forward: weight, rstd or mean is absent");
    parallel_for(tokens, width, [&](std::int64_t n) {
      if (args.branch) {
        for (std::int64_t c = 0; c < width; ++c) sum[n][c] = narrow<T>(widen(x[n][c]) + widen(branch[n][c]));
      } else if (sum[n] != x[n]) {
        std::copy_n(x[n], width, sum[n]);
      }
      const Statistics<A> stats = row_statistics(args.kind, args.eps, sum[n], width);
      normalise_row(stats, sum[n], weight, bias, out[n], width);
      if (layernorm) means[n] = stats.mean;
      rstds[n] = stats.rstd;
    });
  });
}

void norm_backward(const Context&, const NormBackwardArgs& args) {
  const std::int64_t tokens = args.sum.rows, width = args.sum.cols;
  const bool layernorm = args.kind == NormKind::layernorm;
  check_shape(args.dout, "norm_backward: dout", args.sum.dtype, tokens, width);
  check_shape(args.dx, "norm_backward: dx", args.sum.dtype, tokens, width);
  if (args.dresidual) check_shape(args.dresidual, "norm_backward: dresidual", args.sum.dtype, tokens, width);
  visit_float(args.sum.dtype, [&]<class T>(TypeTag<T>) {
    using A = Acc<T>;
    const Rows<T> x = rows_of<T>(args.sum), dout = rows_of<T>(args.dout), dx = rows_of<T>(args.dx);
    const Rows<T> dresidual = rows_of<T>(args.dresidual ? args.dresidual : args.dx);
    const T* weight = vector_of<T>(args.weight, "norm_backward: weight", width);
    const A* means = layernorm ? vector_of<A>(args.mean, "norm_backward: mean", tokens) : nullptr;
    const A* rstds = vector_of<A>(args.rstd, "norm_backward: rstd", tokens);
    A* dweight = vector_of<A>(args.dweight, "norm_backward: dweight", width);
    A* dbias = vector_of<A>(args.dbias, "norm_backward: dbias", width);
    TRAINER_CHECK(weight != nullptr && rstds != nullptr && dweight != nullptr && (means != nullptr) == layernorm,
                  "norm_backward: weight, rstd, mean or dweight is absent");
    const auto stats = [&](std::int64_t n) { return Statistics<A>{layernorm ? means[n] : A{0}, rstds[n]}; };
    // The parameters first: dx may overwrite dout.
    const auto dweight_term = [&](std::int64_t n, std::int64_t c) {
      return widen(dout[n][c]) * ((widen(x[n][c]) - stats(n).mean) * stats(n).rstd);
    };
    sum_columns(tokens, width, dweight_term, dweight, args.accumulate);
    const auto dbias_term = [&](std::int64_t n, std::int64_t c) { return widen(dout[n][c]); };
    if (dbias != nullptr) sum_columns(tokens, width, dbias_term, dbias, args.accumulate);
    parallel_for(tokens, width, [&](std::int64_t n) {
      const T* residual = args.dresidual ? dresidual[n] : nullptr;
      backward_row(args.kind, stats(n), dout[n], x[n], weight, residual, dx[n], width);
    });
  });
}

void head_norm_forward(const Context&, const HeadNormForwardArgs& args) {
  const std::int64_t tokens = args.x.rows, head_dim = head_size(args.x.cols, args.heads);
  check_shape(args.out, "head_norm_forward: out", args.x.dtype, tokens, args.x.cols);
  check_shape(args.rstd, "head_norm_forward: rstd", accumulator_dtype(args.x.dtype), tokens, args.heads);
  visit_float(args.x.dtype, [&]<class T>(TypeTag<T>) {
    const Rows<T> x = rows_of<T>(args.x), out = rows_of<T>(args.out);
    const Rows<Acc<T>> rstd = rows_of<Acc<T>>(args.rstd);
    const T* weight = vector_of<T>(args.weight, "head_norm_forward: weight", head_dim);
    TRAINER_CHECK(weight != nullptr, "head_norm_forward: no weight");
    parallel_for(tokens, args.x.cols, [&](std::int64_t n) {
      for (std::int64_t head = 0; head < args.heads; ++head) {
        const T* row = x[n] + head * head_dim;
        const auto stats = row_statistics(NormKind::rmsnorm, args.eps, row, head_dim);
        normalise_row<T>(stats, row, weight, nullptr, out[n] + head * head_dim, head_dim);
        rstd[n][head] = stats.rstd;
      }
    });
  });
}

void head_norm_backward(const Context&, const HeadNormBackwardArgs& args) {
  const std::int64_t tokens = args.x.rows, heads = args.heads, head_dim = head_size(args.x.cols, heads);
  check_shape(args.dout, "head_norm_backward: dout", args.x.dtype, tokens, args.x.cols);
  check_shape(args.dx, "head_norm_backward: dx", args.x.dtype, tokens, args.x.cols);
  check_shape(args.rstd, "head_norm_backward: rstd", accumulator_dtype(args.x.dtype), tokens, heads);
  visit_float(args.x.dtype, [&]<class T>(TypeTag<T>) {
    using A = Acc<T>;
    const Rows<T> x = rows_of<T>(args.x), dout = rows_of<T>(args.dout), dx = rows_of<T>(args.dx);
    const Rows<A> rstd = rows_of<A>(args.rstd);
    const T* weight = vector_of<T>(args.weight, "head_norm_backward: weight", head_dim);
    A* dweight = vector_of<A>(args.dweight, "head_norm_backward: dweight", head_dim);
    TRAINER_CHECK(weight != nullptr && dweight != nullptr, "head_norm_backward: weight or dweight is absent");
    // The weight first: dx may overwrite dout. A "row" of this sum is one head of one token.
    const auto dweight_term = [&](std::int64_t row, std::int64_t d) {
      const std::int64_t n = row / heads, head = row % heads, c = head * head_dim + d;
      return widen(dout[n][c]) * (widen(x[n][c]) * rstd[n][head]);
    };
    sum_columns(tokens * heads, head_dim, dweight_term, dweight, args.accumulate);
    parallel_for(tokens, args.x.cols, [&](std::int64_t n) {
      for (std::int64_t head = 0; head < heads; ++head) {
        const std::int64_t first = head * head_dim;
        backward_row<T>(NormKind::rmsnorm, {A{0}, rstd[n][head]}, dout[n] + first, x[n] + first, weight, nullptr,
                        dx[n] + first, head_dim);
      }
    });
  });
}

}  // namespace trainer::ops::cpu
