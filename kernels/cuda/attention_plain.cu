// Attention as its definition reads, in float32: a warp for each query row (or key row) and head. Slow, exact, for
// every type and head size: the reference on the card, and what serves the cases that no fast kernel takes.
#include "kernels/cuda/attention_plain.h"
#include "kernels/cuda/common.cuh"

namespace trainer::ops::cuda {
namespace {

constexpr int kMaxPerLane = 8;  // head sizes up to 256
constexpr int kWarpsPerBlock = 4;

/// Everything a thread needs to know of a call; plain data.
template <class T>
struct Call {
  View<T> q, k, v, out, dout, dq, dk, dv;
  float* lse;
  const int* q_starts;
  const int* kv_starts;
  int64_t sequences, heads, kv_heads, head_dim, window, first_sequence, first_head, total_heads;
  int64_t rows;  // of q, or of k
  float scale;
  float dropout;
  uint64_t dropout_key;
};

/// Last sequence that starts at or before `row`.
__device__ inline int64_t sequence_of(const int* starts, int64_t sequences, int64_t row) {
  int64_t low = 0, high = sequences - 1;
  while (low < high) {
    const int64_t middle = (low + high + 1) / 2;
    if (starts[middle] <= row)
      low = middle;
    else
      high = middle - 1;
  }
  return low;
}

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
__device__ inline float kept(const Call<T>& c, int64_t s, int64_t h, int64_t i, int64_t nq, int64_t j, int64_t nk) {
  if (c.dropout <= 0.0F) return 1.0F;
  const int64_t index = (((c.first_sequence + s) * c.total_heads + c.first_head + h) * nq + i) * nk + j;
  return uniform_at(c.dropout_key, static_cast<uint64_t>(index)) >= c.dropout ? 1.0F / (1.0F - c.dropout) : 0.0F;
}

template <class T>
__global__ void forward_kernel(const Call<T> c) {
  const int lane = threadIdx.x % kWarp;
  const int64_t task = int64_t{blockIdx.x} * kWarpsPerBlock + threadIdx.x / kWarp;
  if (task >= c.rows * c.heads) return;
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
  if (lane == 0) c.lse[c.heads * c.q_starts[s] + h * nq + i] = top + logf(total);
}

/// Gradient of score (i, j) before the scale: p (kept dp - delta), with dp = dout . v and delta = dout . out.
__device__ inline float score_gradient(float p, float kept, float dp, float delta) {
  return p * (kept * dp - delta);
}

template <class T>
__global__ void backward_query_kernel(const Call<T> c) {
  const int lane = threadIdx.x % kWarp;
  const int64_t task = int64_t{blockIdx.x} * kWarpsPerBlock + threadIdx.x / kWarp;
  if (task >= c.rows * c.heads) return;
  const int64_t row = task / c.heads, h = task % c.heads, kv = h / (c.heads / c.kv_heads);
  const int64_t s = sequence_of(c.q_starts, c.sequences, row);
  const int64_t nq = c.q_starts[s + 1] - c.q_starts[s], nk = c.kv_starts[s + 1] - c.kv_starts[s];
  const int64_t i = row - c.q_starts[s], last = i + nk - nq;
  const int64_t first = c.window > 0 && last - c.window + 1 > 0 ? last - c.window + 1 : 0;
  float q[kMaxPerLane], dout[kMaxPerLane], dq[kMaxPerLane] = {};
  load_row(c.q.at(row, h * c.head_dim), c.head_dim, lane, q);
  load_row(c.dout.at(row, h * c.head_dim), c.head_dim, lane, dout);
  const float delta = dot_row(dout, c.out.at(row, h * c.head_dim), c.head_dim, lane);
  const float lse = c.lse[c.heads * c.q_starts[s] + h * nq + i];
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
__global__ void backward_key_kernel(const Call<T> c) {
  const int lane = threadIdx.x % kWarp;
  const int64_t task = int64_t{blockIdx.x} * kWarpsPerBlock + threadIdx.x / kWarp;
  if (task >= c.rows * c.kv_heads) return;
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
      const float p = expf(c.scale * dot_row(k, q, c.head_dim, lane) - c.lse[c.heads * c.q_starts[s] + h * nq + i]);
      const float keep = kept(c, s, h, i, nq, j, nk);
      add_row(p * keep, dout, c.head_dim, lane, dv);
      add_row(c.scale * score_gradient(p, keep, dot_row(v, dout, c.head_dim, lane), delta), q, c.head_dim, lane, dk);
    }
  }
  store_row(dk, c.head_dim, lane, c.dk.at(key, kv * c.head_dim));
  store_row(dv, c.head_dim, lane, c.dv.at(key, kv * c.head_dim));
}

template <class T, class Args>
Call<T> common_call(const Args& args) {
  const AttentionShape& shape = args.shape;
  TRAINER_CHECK(shape.head_dim <= kMaxPerLane * kWarp, "attention: head_dim {} is above {}", shape.head_dim,
                kMaxPerLane * kWarp);
  Call<T> call{};
  call.q = view_of<T>(args.q);
  call.k = view_of<T>(args.k);
  call.v = view_of<T>(args.v);
  call.out = view_of<T>(args.out);
  call.lse = args.lse.template as<float>();
  call.q_starts = args.q_starts.template as<std::int32_t>();
  call.kv_starts = args.kv_starts.template as<std::int32_t>();
  call.sequences = args.q_starts.cols - 1;
  call.heads = shape.heads;
  call.kv_heads = shape.kv_heads;
  call.head_dim = shape.head_dim;
  call.window = shape.window;
  call.first_sequence = shape.first_sequence;
  call.first_head = shape.first_head;
  call.total_heads = shape.total_heads;
  call.rows = args.q.rows;
  call.scale = static_cast<float>(shape.scale);
  call.dropout = static_cast<float>(shape.dropout.p);
  call.dropout_key = shape.dropout.key;
  return call;
}

unsigned blocks_for(int64_t tasks) {
  return grid_size(ceil_div(tasks, kWarpsPerBlock));
}
constexpr int kThreads = kWarpsPerBlock * kWarp;

}  // namespace

void plain_attention_forward(const Context& ctx, const AttentionForwardArgs& args) {
  visit_float(args.q.dtype, "attention_forward", [&](auto tag) {
    using T = typename decltype(tag)::type;
    const Call<T> call = common_call<T>(args);
    forward_kernel<T><<<blocks_for(call.rows * call.heads), kThreads, 0, stream_of(ctx)>>>(call);
  });
  check_cuda(cudaGetLastError(), "attention_forward");
}

void plain_attention_backward(const Context& ctx, const AttentionBackwardArgs& args) {
  visit_float(args.q.dtype, "attention_backward", [&](auto tag) {
    using T = typename decltype(tag)::type;
    Call<T> call = common_call<T>(args);
    call.dout = view_of<T>(args.dout);
    call.dq = view_of<T>(args.dq);
    call.dk = view_of<T>(args.dk);
    call.dv = view_of<T>(args.dv);
    backward_query_kernel<T><<<blocks_for(call.rows * call.heads), kThreads, 0, stream_of(ctx)>>>(call);
    call.rows = args.k.rows;
    backward_key_kernel<T><<<blocks_for(call.rows * call.kv_heads), kThreads, 0, stream_of(ctx)>>>(call);
  });
  check_cuda(cudaGetLastError(), "attention_backward");
}

}  // namespace trainer::ops::cuda
