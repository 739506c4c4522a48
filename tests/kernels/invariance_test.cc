// What must not change a bit: the number of threads, and the other rows of a call.
#include <gtest/gtest.h>
#include <omp.h>

#include <numeric>

#include "kernels/ops.h"
#include "tests/kernels/op_cases.h"

namespace trainer::testing {
namespace {

const Context kCpu{};

class Threads {
 public:
  explicit Threads(int n) : before_(omp_get_max_threads()) { omp_set_num_threads(n); }
  ~Threads() { omp_set_num_threads(before_); }
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

 private:
  int before_;
};

TEST(Invariance, BitsDoNotDependOnTheNumberOfThreads) {
  for (const Dtype dtype : {Dtype::f32, Dtype::bf16})
    for (const OpCase& c : op_cases()) {
      if (c.openblas) continue;
      const auto run = [&](int threads) {
        const Threads limit(threads);
        Workbench w(dtype, dtype, 2, 1500);  // enough work for parallel_for to use threads
        return c.run(w);
      };
      const auto alone = run(1), shared = run(3);
      for (std::size_t o = 0; o < alone.size(); ++o)
        EXPECT_TRUE(alone[o].value.same_bits(shared[o].value)) << c.name << " " << alone[o].name;
    }
}

/// `whole` is rows of a call; `part` came from a call with rows first .. first + part.rows() alone.
void expect_rows_equal(const HostTensor& whole, const HostTensor& part, std::int64_t first, const char* name) {
  for (std::int64_t n = 0; n < part.rows(); ++n)
    for (std::int64_t c = 0; c < part.cols(); ++c)
      ASSERT_EQ(whole.get(first + n, c), part.get(n, c)) << name << " row " << first + n;
}

constexpr std::int64_t kTokens = 23, kWidth = 37, kFirst = 6, kCount = 5;

HostTensor rows_of(const HostTensor& t) {
  HostTensor part(t.dtype(), kCount, t.cols());
  for (std::int64_t n = 0; n < kCount; ++n)
    for (std::int64_t c = 0; c < t.cols(); ++c) part.set(n, c, t.get(kFirst + n, c));
  return part;
}

TEST(Invariance, ARowOfANormDoesNotSeeTheOthers) {
  Workbench w(Dtype::f32, Dtype::f32, 0, kTokens);
  const HostTensor x = w.in(kTokens, kWidth), dout = w.in(kTokens, kWidth), weight = w.vector(kWidth);
  const auto run = [&](const HostTensor& x_rows, const HostTensor& dout_rows) {
    HostTensor out = w.out(x_rows.rows(), kWidth), dx = out, mean = w.sums(1, x_rows.rows()), rstd = mean;
    HostTensor dweight = w.sums(kWidth, 1);
    ops::add_norm_forward(
        kCpu, {.kind = NormKind::layernorm, .x = x_rows, .weight = weight, .out = out, .mean = mean, .rstd = rstd});
    ops::norm_backward(kCpu, {.kind = NormKind::layernorm,
                              .dout = dout_rows,
                              .sum = x_rows,
                              .weight = weight,
                              .mean = mean,
                              .rstd = rstd,
                              .dx = dx,
                              .dweight = dweight});
    return std::pair{out, dx};
  };
  const auto [out, dx] = run(x, dout);
  const auto [out_part, dx_part] = run(rows_of(x), rows_of(dout));
  expect_rows_equal(out, out_part, kFirst, "out");
  expect_rows_equal(dx, dx_part, kFirst, "dx");
}

TEST(Invariance, ARowOfAnActivationDoesNotSeeTheOthers) {
  for (const Activation kind : {Activation::gelu, Activation::gelu_tanh}) {
    Workbench w(Dtype::f32, Dtype::f32, 0, kTokens);
    const HostTensor x = w.in(kTokens, kWidth), dout = w.in(kTokens, kWidth);
    const auto run = [&](const HostTensor& x_rows, const HostTensor& dout_rows) {
      HostTensor out = w.out(x_rows.rows(), kWidth), dx = out;
      ops::activation_forward(kCpu, {.kind = kind, .x = x_rows, .out = out});
      ops::activation_backward(kCpu, {.kind = kind, .x = x_rows, .dout = dout_rows, .dx = dx});
      return std::pair{out, dx};
    };
    const auto [out, dx] = run(x, dout);
    const auto [out_part, dx_part] = run(rows_of(x), rows_of(dout));
    expect_rows_equal(out, out_part, kFirst, "out");
    expect_rows_equal(dx, dx_part, kFirst, "dx");
  }
}

TEST(Invariance, ARowOfCrossEntropyDoesNotSeeTheOthers) {
  Workbench w(Dtype::f32, Dtype::f32, 0, kTokens);
  const HostTensor logits = w.in(kTokens, kWidth);
  std::vector<std::int32_t> targets(kTokens);
  std::iota(targets.begin(), targets.end(), 0);
  const auto run = [&](HostTensor rows, const HostIds& ids) {
    HostTensor stats = w.sums(rows.rows(), 3), sums(Dtype::f64, 1, 3);
    ops::cross_entropy_stats(kCpu, {.logits = rows, .targets = ids, .stats = stats, .valid_cols = kWidth});
    ops::cross_entropy_finish(kCpu,
                              {.logits = rows, .targets = ids, .stats = stats, .sums = sums, .valid_cols = kWidth});
    return rows;
  };
  const HostTensor whole = run(logits, HostIds(targets));
  const HostTensor part = run(
      rows_of(logits), HostIds(std::vector<std::int32_t>(targets.begin() + kFirst, targets.begin() + kFirst + kCount)));
  expect_rows_equal(whole, part, kFirst, "dlogits");
}

// A rank that has some of the sequences and heads computes what one rank with all of them does, dropout included.
TEST(Invariance, ASequenceAndAHeadOfAttentionDoNotSeeTheOthers) {
  constexpr std::int64_t kHeads = 4, kHeadDim = 6;
  Workbench w(Dtype::f32, Dtype::f32, 0, kTokens);
  const HostTensor q = w.in(kTokens, kHeads * kHeadDim), k = w.in(kTokens, kHeads * kHeadDim);
  const HostTensor v = w.in(kTokens, kHeads * kHeadDim), dout = w.in(kTokens, kHeads * kHeadDim);
  struct Part {
    std::int64_t first_head, heads, first_row, rows, first_sequence;
    HostIds starts;
  };
  const auto run = [&](const Part& p) {
    const auto cut = [&](const HostTensor& t) {
      return t.tensor().row_range(p.first_row, p.rows).col_range(p.first_head * kHeadDim, p.heads * kHeadDim);
    };
    ops::AttentionShape shape{.heads = p.heads, .kv_heads = p.heads, .head_dim = kHeadDim, .scale = 0.4};
    shape.max_seq = kTokens;
    shape.dropout = {.p = 0.2, .key = 4};
    shape.first_sequence = p.first_sequence;
    shape.first_head = p.first_head;
    shape.total_heads = kHeads;
    HostTensor out = w.out(p.rows, p.heads * kHeadDim), dq = out, dk = out, dv = out, lse = w.sums(1, p.rows * p.heads);
    ops::attention_forward(kCpu, {.shape = shape,
                                  .q = cut(q),
                                  .k = cut(k),
                                  .v = cut(v),
                                  .q_starts = p.starts,
                                  .kv_starts = p.starts,
                                  .out = out,
                                  .lse = lse});
    ops::attention_backward(kCpu, {.shape = shape,
                                   .q = cut(q),
                                   .k = cut(k),
                                   .v = cut(v),
                                   .q_starts = p.starts,
                                   .kv_starts = p.starts,
                                   .out = out,
                                   .lse = lse,
                                   .dout = cut(dout),
                                   .dq = dq,
                                   .dk = dk,
                                   .dv = dv});
    return std::vector<HostTensor>{out, dq, dk, dv};
  };
  const auto whole = run({0, kHeads, 0, kTokens, 0, {0, 4, 15, kTokens}});
  const auto part = run({2, 2, 4, 11, 1, {0, 11}});
  for (std::size_t t = 0; t < whole.size(); ++t)
    for (std::int64_t n = 0; n < 11; ++n)
      for (std::int64_t c = 0; c < 2 * kHeadDim; ++c)
        ASSERT_EQ(whole[t].get(4 + n, 2 * kHeadDim + c), part[t].get(n, c)) << "tensor " << t;
}

}  // namespace
}  // namespace trainer::testing
