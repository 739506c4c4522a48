// Attention by blocks of query rows: scores = scale q k^T over the keys that the block can see, softmax of each row,
// times v. Only one block of scores exists at a time. Work is shared out by (sequence, key/value head), so that every
// element is summed in one order whatever the number of threads.
#include <cmath>
#include <vector>

#include "kernels/cpu/gemm.h"

namespace trainer::ops::cpu {
namespace {

/// Rows of queries that share one matrix product. Larger blocks waste more of the causal half.
constexpr std::int64_t kQueryBlock = 64;

struct Range {
  std::int64_t first, last;
  std::int64_t size() const { return last - first; }
};

/// One sequence: rows of q and of k, v.
struct Sequence {
  std::int64_t index;
  Range queries, keys;

  /// Keys that query i sees: ends aligned, window counted back from the query's own key.
  Range visible(const AttentionShape& shape, std::int64_t i) const {
    const std::int64_t last = i + keys.size() - queries.size() + 1;
    return {shape.window > 0 ? std::max<std::int64_t>(0, last - shape.window) : 0, last};
  }
};

std::vector<Sequence> read_sequences(const AttentionShape& shape, const Tensor& q_starts, const Tensor& kv_starts,
                                     std::int64_t q_rows, std::int64_t kv_rows) {
  check_shape(q_starts, "attention: q_starts", Dtype::i32, 1, q_starts.cols);
  check_shape(kv_starts, "attention: kv_starts", Dtype::i32, 1, q_starts.cols);
  const auto* q = q_starts.as<std::int32_t>();
  const auto* kv = kv_starts.as<std::int32_t>();
  std::vector<Sequence> sequences;
  for (std::int64_t s = 0; s + 1 < q_starts.cols; ++s) {
    const Sequence sequence{s, {q[s], q[s + 1]}, {kv[s], kv[s + 1]}};
    TRAINER_CHECK(q[s] >= 0 && sequence.queries.size() >= 0 && q[s + 1] <= q_rows && kv[s] >= 0 && kv[s + 1] <= kv_rows,
                  "attention: sequence {} has rows {}..{} of {} and {}..{} of {}", s, q[s], q[s + 1], q_rows, kv[s],
                  kv[s + 1], kv_rows);
    TRAINER_CHECK(sequence.keys.size() >= sequence.queries.size(), "attention: sequence {} has {} queries but {} keys",
                  s, sequence.queries.size(), sequence.keys.size());
    TRAINER_CHECK(sequence.queries.size() <= shape.max_seq, "attention: sequence {} is longer than max_seq = {}", s,
                  shape.max_seq);
    sequences.push_back(sequence);
  }
  return sequences;
}

void check_heads(const AttentionShape& shape, const Tensor& q, const Tensor& k, const Tensor& v) {
  TRAINER_CHECK(shape.kv_heads > 0 && shape.heads % shape.kv_heads == 0, "attention: {} heads on {} key/value heads",
                shape.heads, shape.kv_heads);
  check_shape(q, "attention: q", q.dtype, q.rows, shape.heads * shape.head_dim);
  check_shape(k, "attention: k", q.dtype, k.rows, shape.kv_heads * shape.head_dim);
  check_shape(v, "attention: v", q.dtype, k.rows, shape.kv_heads * shape.head_dim);
}

/// Columns of one head, rows of one sequence.
Tensor cut(const Tensor& tensor, Range rows, std::int64_t head, std::int64_t head_dim) {
  return tensor.row_range(rows.first, rows.size()).col_range(head * head_dim, head_dim);
}

/// Log-sum-exp of one head of one sequence: [queries.size()].
template <class A>
A* lse_of(const Tensor& lse, const AttentionShape& shape, const Sequence& sequence, std::int64_t head) {
  return lse.as<A>() + shape.heads * sequence.queries.first + head * sequence.queries.size();
}

/// A block of queries of one head and the keys that any of them sees. Scores are [rows.size(), keys.size()].
struct Block {
  Range rows;  // queries within the sequence
  Range keys;  // keys within the sequence
};

template <class F>
void for_blocks(const AttentionShape& shape, const Sequence& sequence, const F& body) {
  const std::int64_t nq = sequence.queries.size();
  for (std::int64_t first = 0; first < nq; first += kQueryBlock) {
    const std::int64_t last = std::min(nq, first + kQueryBlock);
    body(Block{{first, last}, {sequence.visible(shape, first).first, sequence.visible(shape, last - 1).last}});
  }
}

/// Dropout factors of the keys that query i sees.
template <class A>
void draw_factors(const AttentionShape& shape, const Sequence& sequence, std::int64_t head, std::int64_t i, Range seen,
                  std::vector<A>& factors) {
  const std::int64_t pair = (shape.first_sequence + sequence.index) * shape.total_heads + shape.first_head + head;
  const std::int64_t first = (pair * sequence.queries.size() + i) * sequence.keys.size() + seen.first;
  factors.resize(static_cast<std::size_t>(seen.size()));
  dropout_factors(shape.dropout, static_cast<std::uint64_t>(first), seen.size(), factors.data());
}

/// scores -> exp(score - max), 0 where masked. Returns (max, sum) of the visible part.
template <class A>
std::pair<A, A> exponentials(A* scores, Range block_keys, Range seen) {
  A* const begin = scores + (seen.first - block_keys.first);
  A* const end = scores + (seen.last - block_keys.first);
  A max = *begin;
#pragma omp simd reduction(max : max)
  for (A* p = begin; p < end; ++p) max = std::max(max, *p);
  double sum = 0;
  for (A* p = begin; p != end; ++p) {
    *p = std::exp(*p - max);
    sum += static_cast<double>(*p);
  }
  std::fill(scores, begin, A{0});
  std::fill(end, scores + block_keys.size(), A{0});
  return {max, static_cast<A>(sum)};
}

/// One head of one sequence.
template <class T>
void forward_head(const AttentionForwardArgs& args, const Sequence& sequence, std::int64_t head) {
  using A = Acc<T>;
  const AttentionShape& shape = args.shape;
  const std::int64_t kv_head = head / (shape.heads / shape.kv_heads), head_dim = shape.head_dim;
  const Tensor q_rows = cut(args.q, sequence.queries, head, head_dim);
  const Widened<T> k(cut(args.k, sequence.keys, kv_head, head_dim)), v(cut(args.v, sequence.keys, kv_head, head_dim));
  const Rows<T> out = rows_of<T>(cut(args.out, sequence.queries, head, head_dim));
  A* lse = lse_of<A>(args.lse, shape, sequence, head);
  std::vector<A> scores_memory(static_cast<std::size_t>(kQueryBlock * sequence.keys.size()));
  std::vector<A> out_memory(static_cast<std::size_t>(kQueryBlock * head_dim));
  std::vector<A> factors;
  Widened<T> q;
  for_blocks(shape, sequence, [&](const Block& block) {
    const std::int64_t rows = block.rows.size(), keys = block.keys.size();
    const Matrix<A> scores{scores_memory.data(), rows, keys, keys};
    const Matrix<A> sums{out_memory.data(), rows, head_dim, head_dim};
    q.load(q_rows.row_range(block.rows.first, rows));
    gemm(static_cast<A>(shape.scale), q.matrix(), transpose(k.matrix().row_range(block.keys.first, keys)), A{0},
         scores);
    for (std::int64_t r = 0; r < rows; ++r) {
      const std::int64_t i = block.rows.first + r;
      const Range seen = sequence.visible(shape, i);
      A* row = scores.data + r * keys;
      const auto [max, sum] = exponentials(row, block.keys, seen);
      lse[i] = max + std::log(sum);
      A* visible_row = row + (seen.first - block.keys.first);
      for (std::int64_t j = 0; j < seen.size(); ++j) visible_row[j] /= sum;
      if (shape.dropout.p > 0) {
        draw_factors(shape, sequence, head, i, seen, factors);
        for (std::int64_t j = 0; j < seen.size(); ++j) visible_row[j] *= factors[static_cast<std::size_t>(j)];
      }
    }
    gemm(A{1}, scores, v.matrix().row_range(block.keys.first, keys), A{0}, sums);
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t d = 0; d < head_dim; ++d) out[block.rows.first + r][d] = narrow<T>(sums.data[r * head_dim + d]);
  });
}

/// The gradients of one key/value head of one sequence, and of the query heads that share it.
template <class T>
class BackwardGroup {
 public:
  using A = Acc<T>;

  BackwardGroup(const AttentionBackwardArgs& args, const Sequence& sequence, std::int64_t kv_head)
      : args_(args),
        sequence_(sequence),
        kv_head_(kv_head),
        k_(kv_rows(args.k)),
        v_(kv_rows(args.v)),
        dk_memory_(static_cast<std::size_t>(sequence.keys.size() * args.shape.head_dim)),
        dv_memory_(dk_memory_.size()),
        probabilities_memory_(static_cast<std::size_t>(kQueryBlock * sequence.keys.size())),
        gradients_memory_(probabilities_memory_.size()) {}

  void run() {
    const std::int64_t group = args_.shape.heads / args_.shape.kv_heads;
    for (std::int64_t head = kv_head_ * group; head < (kv_head_ + 1) * group; ++head)
      for_blocks(args_.shape, sequence_, [&](const Block& block) { add_block(head, block); });
    store(dk_memory_, kv_rows(args_.dk));
    store(dv_memory_, kv_rows(args_.dv));
  }

 private:
  Tensor kv_rows(const Tensor& t) const { return cut(t, sequence_.keys, kv_head_, args_.shape.head_dim); }
  Tensor query_rows(const Tensor& t, std::int64_t head, const Block& block) const {
    return cut(t, sequence_.queries, head, args_.shape.head_dim).row_range(block.rows.first, block.rows.size());
  }
  Matrix<A> block_of(std::vector<A>& memory, const Block& block) const {
    const std::int64_t head_dim = args_.shape.head_dim;
    return {memory.data() + block.keys.first * head_dim, block.keys.size(), head_dim, head_dim};
  }

  /// P = softmax, dP = dout v^T, delta = rowsum(dout * out) = rowsum(P * dP), dS = P (dP - delta);
  /// dq = scale dS k, dk += scale dS^T q, dv += P^T dout. With dropout mask M: dv += (P M)^T dout and dP -> dP M.
  void add_block(std::int64_t head, const Block& block) {
    const std::int64_t rows = block.rows.size(), keys = block.keys.size();
    const auto scale = static_cast<A>(args_.shape.scale);
    const Matrix<A> p{probabilities_memory_.data(), rows, keys, keys};
    const Matrix<A> ds{gradients_memory_.data(), rows, keys, keys};
    const auto k = k_.matrix().row_range(block.keys.first, keys), v = v_.matrix().row_range(block.keys.first, keys);
    q_.load(query_rows(args_.q, head, block));
    dout_.load(query_rows(args_.dout, head, block));
    gemm(scale, q_.matrix(), transpose(k), A{0}, p);
    gemm(A{1}, dout_.matrix(), transpose(v), A{0}, ds);
    for (std::int64_t r = 0; r < rows; ++r) backward_row(head, block, r, p.data + r * keys, ds.data + r * keys);
    gemm(A{1}, transpose(p), dout_.matrix(), A{1}, block_of(dv_memory_, block));
    gemm(scale, transpose(ds), q_.matrix(), A{1}, block_of(dk_memory_, block));
    WidenedOutput<T> dq(query_rows(args_.dq, head, block), false);
    gemm(scale, ds, k, A{0}, dq.matrix());
    dq.store();
  }

  /// In: a row of scores in p and of dout v^T in ds. Out: the row of P M, and of dS.
  void backward_row(std::int64_t head, const Block& block, std::int64_t r, A* p, A* ds) {
    const std::int64_t i = block.rows.first + r;
    const Range seen = sequence_.visible(args_.shape, i);
    const A lse = lse_of<A>(args_.lse, args_.shape, sequence_, head)[i];
    // From `out` and not from P dP, because the keys here may be a part of those that lse and out have seen.
    const Rows<T> out = rows_of<T>(query_rows(args_.out, head, block));
    const A* dout = dout_.matrix().data + r * dout_.matrix().stride;
    A delta{0};
    for (std::int64_t d = 0; d < args_.shape.head_dim; ++d) delta += dout[d] * widen(out[r][d]);
    const bool dropping = args_.shape.dropout.p > 0;
    if (dropping) draw_factors(args_.shape, sequence_, head, i, seen, factors_);
    const std::int64_t begin = seen.first - block.keys.first, end = seen.last - block.keys.first;
    for (std::int64_t j = begin; j < end; ++j) {
      const A probability = std::exp(p[j] - lse);
      const A factor = dropping ? factors_[static_cast<std::size_t>(j - begin)] : A{1};
      p[j] = probability * factor;
      ds[j] = probability * (ds[j] * factor - delta);
    }
    for (A* masked : {p, ds}) {
      std::fill(masked, masked + begin, A{0});
      std::fill(masked + end, masked + block.keys.size(), A{0});
    }
  }

  static void store(const std::vector<A>& from, const Tensor& to) {
    const Rows<T> rows = rows_of<T>(to);
    for (std::int64_t j = 0; j < to.rows; ++j)
      for (std::int64_t d = 0; d < to.cols; ++d)
        rows[j][d] = narrow<T>(from[static_cast<std::size_t>(j * to.cols + d)]);
  }

  const AttentionBackwardArgs& args_;
  const Sequence& sequence_;
  std::int64_t kv_head_;
  Widened<T> k_, v_, q_, dout_;
  std::vector<A> dk_memory_, dv_memory_, probabilities_memory_, gradients_memory_, factors_;
};

/// body(sequence, head) for each pair, shared out dynamically: sequences differ in length.
template <class F>
void for_heads(const std::vector<Sequence>& sequences, std::int64_t heads, const F& body) {
  const auto pairs = static_cast<std::int64_t>(sequences.size()) * heads;
#pragma omp parallel for schedule(dynamic, 1) if (pairs > 1)
  for (std::int64_t pair = 0; pair < pairs; ++pair)
    body(sequences[static_cast<std::size_t>(pair / heads)], pair % heads);
}

}  // namespace

void attention_forward(const Context&, const AttentionForwardArgs& args) {
  check_heads(args.shape, args.q, args.k, args.v);
  check_shape(args.out, "attention_forward: out", args.q.dtype, args.q.rows, args.q.cols);
  check_shape(args.lse, "attention_forward: lse", accumulator_dtype(args.q.dtype), 1, args.q.rows * args.shape.heads);
  const auto sequences = read_sequences(args.shape, args.q_starts, args.kv_starts, args.q.rows, args.k.rows);
  visit_float(args.q.dtype, [&]<class T>(TypeTag<T>) {
    for_heads(sequences, args.shape.heads,
              [&](const Sequence& sequence, std::int64_t head) { forward_head<T>(args, sequence, head); });
  });
}

void attention_backward(const Context&, const AttentionBackwardArgs& args) {
  check_heads(args.shape, args.q, args.k, args.v);
  for (const Tensor* t : {&args.out, &args.dout, &args.dq})
    check_shape(*t, "attention_backward: out, dout or dq", args.q.dtype, args.q.rows, args.q.cols);
  for (const Tensor* t : {&args.dk, &args.dv})
    check_shape(*t, "attention_backward: dk or dv", args.k.dtype, args.k.rows, args.k.cols);
  check_shape(args.lse, "attention_backward: lse", accumulator_dtype(args.q.dtype), 1, args.q.rows * args.shape.heads);
  const auto sequences = read_sequences(args.shape, args.q_starts, args.kv_starts, args.q.rows, args.k.rows);
  visit_float(args.q.dtype, [&]<class T>(TypeTag<T>) {
    for_heads(sequences, args.shape.kv_heads,
              [&](const Sequence& sequence, std::int64_t kv_head) { BackwardGroup<T>(args, sequence, kv_head).run(); });
  });
}

}  // namespace trainer::ops::cpu
