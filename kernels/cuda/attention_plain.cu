// Attention as its definition reads, in float32: a warp for each query row (or key row) and head. Slow, exact, for
// every type and head size: the reference on the card, and what serves the cases that no fast kernel takes.
#include "kernels/cuda/attention_call.cuh"
#include "kernels/cuda/attention_plain.h"

namespace trainer::ops::cuda {
namespace {

constexpr int kMaxPerLane = 8;  // head sizes up to 256
constexpr int kWarpsPerBlock = 4;

template <class T>
__device__ inline float dot_row(const float (&x)[kMaxPerLane], const T* row, int64_t head_dim, int lane) {
  float sum = 0.0F;
#pragma unroll
  for (int i = 0; i < kMaxPerLane; ++i) {
    const int64_t d = lane + int64_t{i} * kWarp;
    if (d < head_dim) sum += x[i] * widen(row[d]);
  }
  return lane_sum(sum);
}

template <class T>
__device__ inline void load_row(const T* row, int64_t head_dim, int lane, float (&x)[kMaxPerLane]) {
#pragma unroll
  for (int i = 0; i < kMaxPerLane; ++i) {
    const int64_t d = lane + int64_t{i} * kWarp;
    x[i] = d < head_dim ? widen(row[d]) : 0.0F;
  }
}

template <class T>
__device__ inline void add_row(float weight, const T* row, int64_t head_dim, int lane, float (&sum)[kMaxPerLane]) {
#pragma unroll
  for (int i = 0; i < kMaxPerLane; ++i) {
    const int64_t d = lane + int64_t{i} * kWarp;
    if (d < head_dim) sum[i] += weight * widen(row[d]);
  }
}

template <class T>
__device__ inline void store_row(const float (&x)[kMaxPerLane], int64_t head_dim, int lane, T* row) {
#pragma unroll
  for (int i = 0; i < kMaxPerLane; ++i) {
    const int64_t d = lane + int64_t{i} * kWarp;
    if (d < head_dim) row[d] = narrow<T>(x[i]);
  }
}

/// What multiplies a probability: 0 where dropout drops it, 1 / (1 - p) where it is kept.
template <class T>
__device__ inline float kept(const AttentionCall<T>& c, int64_t s, int64_t h, int64_t i, int64_t nq, int64_t j,
                             int64_t nk) {
  if (c.drop_below == 0) return 1.0F;
  uint32_t draw[1];
  random_words<1>(c.dropout_key, c.first_draw(s, h, nq, nk) + static_cast<uint64_t>(i * nk + j), draw);
  return c.keeps(draw[0]) ? c.kept_factor : 0.0F;
}

template <class T>
__global__ void forward_kernel(const AttentionCall<T> c) {
  const int lane = threadIdx.x % kWarp;
  const int64_t task = int64_t{blockIdx.x} * kWarpsPerBlock + threadIdx.x / kWarp;
  if (task >= c.q_rows * c.heads) return;
  const int64_t row = task / c.heads, h = task % c.heads, kv = h / (c.heads / c.kv_heads);
  const int64_t s = sequence_of(c.q_starts, c.sequences, row);
  const int64_t nq = c.q_starts[s + 1] - c.q_starts[s], nk = c.kv_starts[s + 1] - c.kv_starts[s];
  const int64_t i = row - c.q_starts[s], last = i + nk - nq;
  const int64_t first = c.window > 0 && last - c.window + 1 > 0 ? last - c.window + 1 : 0;
  float q[kMaxPerLane], sum[kMaxPerLane] = {};
  load_row(c.q.at(row, h * c.head_dim), c.head_dim, lane, q);
  float top = -INFINITY, total = 0.0F;
  for (int64_t j = first; j <= last; ++j) {
    const int64_t key = c.kv_starts[s] + j;
    const float score = c.scale * dot_row(q, c.k.at(key, kv * c.head_dim), c.head_dim, lane);
    const float higher = fmaxf(top, score), shrink = expf(top - higher), p = expf(score - higher);
    total = total * shrink + p;
#pragma unroll
    for (int e = 0; e < kMaxPerLane; ++e) sum[e] *= shrink;
    add_row(p * kept(c, s, h, i, nq, j, nk), c.v.at(key, kv * c.head_dim), c.head_dim, lane, sum);
    top = higher;
  }
#pragma unroll
  for (int e = 0; e < kMaxPerLane; ++e) sum[e] /= total;
  store_row(sum, c.head_dim, lane, c.out.at(row, h * c.head_dim));
  if (lane == 0) c.lse[c.lse_index(c.q_starts[s], h, i, nq)] = top + logf(total);
}

/// Gradient of score (i, j) before the scale: p (kept dp - delta), with dp = dout . v and delta = dout . out.
__device__ inline float score_gradient(float p, float kept, float dp, float delta) {
  return p * (kept * dp - delta);
}

template <class T>
__global__ void backward_query_kernel(const AttentionCall<T> c) {
  const int lane = threadIdx.x % kWarp;
  const int64_t task = int64_t{blockIdx.x} * kWarpsPerBlock + threadIdx.x / kWarp;
  if (task >= c.q_rows * c.heads) return;
  const int64_t row = task / c.heads, h = task % c.heads, kv = h / (c.heads / c.kv_heads);
  const int64_t s = sequence_of(c.q_starts, c.sequences, row);
  const int64_t nq = c.q_starts[s + 1] - c.q_starts[s], nk = c.kv_starts[s + 1] - c.kv_starts[s];
  const int64_t i = row - c.q_starts[s], last = i + nk - nq;
  const int64_t first = c.window > 0 && last - c.window + 1 > 0 ? last - c.window + 1 : 0;
  float q[kMaxPerLane], dout[kMaxPerLane], dq[kMaxPerLane] = {};
  load_row(c.q.at(row, h * c.head_dim), c.head_dim, lane, q);
  load_row(c.dout.at(row, h * c.head_dim), c.head_dim, lane, dout);
  const float delta = dot_row(dout, c.out.at(row, h * c.head_dim), c.head_dim, lane);
  const float lse = c.lse[c.lse_index(c.q_starts[s], h, i, nq)];
  for (int64_t j = first; j <= last; ++j) {
    const int64_t key = c.kv_starts[s] + j;
    const T* k = c.k.at(key, kv * c.head_dim);
    const float p = expf(c.scale * dot_row(q, k, c.head_dim, lane) - lse);
    const float dp = dot_row(dout, c.v.at(key, kv * c.head_dim), c.head_dim, lane);
    add_row(c.scale * score_gradient(p, kept(c, s, h, i, nq, j, nk), dp, delta), k, c.head_dim, lane, dq);
  }
  store_row(dq, c.head_dim, lane, c.dq.at(row, h * c.head_dim));
}

template <class T>
__global__ void backward_key_kernel(const AttentionCall<T> c) {
  const int lane = threadIdx.x % kWarp;
  const int64_t task = int64_t{blockIdx.x} * kWarpsPerBlock + threadIdx.x / kWarp;
  if (task >= c.kv_rows * c.kv_heads) return;
  const int64_t key = task / c.kv_heads, kv = task % c.kv_heads, group = c.heads / c.kv_heads;
  const int64_t s = sequence_of(c.kv_starts, c.sequences, key);
  const int64_t nq = c.q_starts[s + 1] - c.q_starts[s], nk = c.kv_starts[s + 1] - c.kv_starts[s];
  const int64_t j = key - c.kv_starts[s], shift = nk - nq;
  const int64_t first = j - shift > 0 ? j - shift : 0;  // the first query that sees this key
  const int64_t end = c.window > 0 && j - shift + c.window < nq ? j - shift + c.window : nq;
  float k[kMaxPerLane], v[kMaxPerLane], dk[kMaxPerLane] = {}, dv[kMaxPerLane] = {};
  load_row(c.k.at(key, kv * c.head_dim), c.head_dim, lane, k);
  load_row(c.v.at(key, kv * c.head_dim), c.head_dim, lane, v);
  for (int64_t h = kv * group; h < (kv + 1) * group; ++h) {
    for (int64_t i = first; i < end; ++i) {
      const int64_t row = c.q_starts[s] + i;
      const T* q = c.q.at(row, h * c.head_dim);
      const T* dout = c.dout.at(row, h * c.head_dim);
      float out[kMaxPerLane];
      load_row(c.out.at(row, h * c.head_dim), c.head_dim, lane, out);
      const float delta = dot_row(out, dout, c.head_dim, lane);
      const float p = expf(c.scale * dot_row(k, q, c.head_dim, lane) - c.lse[c.lse_index(c.q_starts[s], h, i, nq)]);
      const float keep = kept(c, s, h, i, nq, j, nk);
      add_row(p * keep, dout, c.head_dim, lane, dv);
      add_row(c.scale * score_gradient(p, keep, dot_row(v, dout, c.head_dim, lane), delta), q, c.head_dim, lane, dk);
    }
  }
  store_row(dk, c.head_dim, lane, c.dk.at(key, kv * c.head_dim));
  store_row(dv, c.head_dim, lane, c.dv.at(key, kv * c.head_dim));
}

void check_head_dim(const AttentionShape& shape) {
  TRAINER_CHECK(shape.head_dim <= kMaxPerLane * kWarp, "attention: head_dim {} is above {}", shape.head_dim,
                kMaxPerLane * kWarp);
}

unsigned blocks_for(int64_t tasks) {
  return grid_size(ceil_div(tasks, kWarpsPerBlock));
}
constexpr int kThreads = kWarpsPerBlock * kWarp;

}  // namespace

void plain_attention_forward(const Context& ctx, const AttentionForwardArgs& args) {
  check_head_dim(args.shape);
  visit_float(args.q.dtype, "attention_forward", [&](auto tag) {
    using T = typename decltype(tag)::type;
    const AttentionCall<T> call = common_call<T>(args);
    forward_kernel<T><<<blocks_for(call.q_rows * call.heads), kThreads, 0, stream_of(ctx)>>>(call);
  });
  check_cuda(cudaGetLastError(), "attention_forward");
}

void plain_attention_backward(const Context& ctx, const AttentionBackwardArgs& args) {
  check_head_dim(args.shape);
  visit_float(args.q.dtype, "attention_backward", [&](auto tag) {
    using T = typename decltype(tag)::type;
    const AttentionCall<T> call = backward_call<T>(args);
    backward_query_kernel<T><<<blocks_for(call.q_rows * call.heads), kThreads, 0, stream_of(ctx)>>>(call);
    backward_key_kernel<T><<<blocks_for(call.kv_rows * call.kv_heads), kThreads, 0, stream_of(ctx)>>>(call);
  });
  check_cuda(cudaGetLastError(), "attention_backward");
}

}  // namespace trainer::ops::cuda
