// What every attention kernel of our own is told: the tensors of a call, its sequences and its dropout.
#pragma once
#include <cmath>

#include "kernels/cuda/common.cuh"

namespace trainer::ops::cuda {

/// A call of attention_forward or attention_backward as plain data.
template <class T>
struct AttentionCall {
  View<T> q, k, v, out, dout, dq, dk, dv;
  float* lse;
  const int* q_starts;
  const int* kv_starts;
  int64_t q_rows, kv_rows;
  int64_t sequences, heads, kv_heads, head_dim, window, first_sequence, first_head, total_heads;
  float scale;
  uint32_t drop_below;  // a draw of 24 bits below this drops its element; 0: no dropout
  float kept_factor;    // 1 / (1 - p)
  uint64_t dropout_key;

  /// Index of (sequence s, head h, query 0, key 0) in the stream of dropout draws.
  __device__ uint64_t first_draw(int64_t s, int64_t h, int64_t nq, int64_t nk) const {
    return static_cast<uint64_t>(((first_sequence + s) * total_heads + first_head + h) * nq * nk);
  }
  /// Whether a draw keeps its element: the CPU's comparison of the uniform number with p, in whole numbers.
  __device__ bool keeps(uint32_t draw) const { return (draw >> 8) >= drop_below; }
  /// Where the log-sum-exp of query i of head h lies.
  __device__ int64_t lse_index(int64_t q_start, int64_t h, int64_t i, int64_t nq) const {
    return heads * q_start + h * nq + i;
  }
};

/// Last of `sequences` sequences with start(sequence) <= at; start must not fall.
template <class Start>
__device__ inline int64_t last_sequence(int64_t sequences, int64_t at, const Start& start) {
  int64_t low = 0, high = sequences - 1;
  while (low < high) {
    const int64_t middle = (low + high + 1) / 2;
    if (start(middle) <= at)
      low = middle;
    else
      high = middle - 1;
  }
  return low;
}
/// Last sequence that starts at or before `row`.
__device__ inline int64_t sequence_of(const int* starts, int64_t sequences, int64_t row) {
  return last_sequence(sequences, row, [starts](int64_t s) { return starts[s]; });
}

/// The part of a call that both directions have.
template <class T, class Args>
AttentionCall<T> common_call(const Args& args) {
  const AttentionShape& shape = args.shape;
  AttentionCall<T> call{};
  call.q = view_of<T>(args.q);
  call.k = view_of<T>(args.k);
  call.v = view_of<T>(args.v);
  call.out = view_of<T>(args.out);
  call.lse = args.lse.template as<float>();
  call.q_starts = args.q_starts.template as<std::int32_t>();
  call.kv_starts = args.kv_starts.template as<std::int32_t>();
  call.q_rows = args.q.rows;
  call.kv_rows = args.k.rows;
  call.sequences = args.q_starts.cols - 1;
  call.heads = shape.heads;
  call.kv_heads = shape.kv_heads;
  call.head_dim = shape.head_dim;
  call.window = shape.window;
  call.first_sequence = shape.first_sequence;
  call.first_head = shape.first_head;
  call.total_heads = shape.total_heads;
  call.scale = static_cast<float>(shape.scale);
  call.drop_below = static_cast<uint32_t>(std::ceil(shape.dropout.p * 0x1p24));
  call.kept_factor = static_cast<float>(1.0 / (1.0 - shape.dropout.p));
  call.dropout_key = shape.dropout.key;
  return call;
}

template <class T>
AttentionCall<T> backward_call(const AttentionBackwardArgs& args) {
  AttentionCall<T> call = common_call<T>(args);
  call.dout = view_of<T>(args.dout);
  call.dq = view_of<T>(args.dq);
  call.dk = view_of<T>(args.dk);
  call.dv = view_of<T>(args.dv);
  return call;
}

}  // namespace trainer::ops::cuda
