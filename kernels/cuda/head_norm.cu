// RMSNorm of each head of q or k, one weight for all heads. A head is the work of a group of lanes of one warp.
#include <algorithm>

#include "kernels/cuda/common.cuh"

namespace trainer::ops::cuda {
namespace {

constexpr int kThreads = 256;

template <class T>
struct HeadNorm {
  int64_t items;  // tokens x heads
  int heads, head_dim;
  int lanes;  // of a group: a power of two
  float eps;
  View<T> x, out, dout, dx;
  const T* weight;
  View<float> rstd;
  float* partials;  // [blocks, D]
};

struct Position {
  int64_t token;
  int head;
};
template <class T>
__device__ inline Position position_of(const HeadNorm<T>& p, int64_t item) {
  const int64_t token =
      item <= 0xffffffff ? static_cast<uint32_t>(item) / static_cast<uint32_t>(p.heads) : item / p.heads;
  return {token, static_cast<int>(item - token * p.heads)};
}

template <class T, int N, int VPT>
__global__ void __launch_bounds__(kThreads) head_norm_forward_kernel(HeadNorm<T> p) {
  const int lane = threadIdx.x % p.lanes;
  const int64_t item = static_cast<int64_t>(blockIdx.x) * (kThreads / p.lanes) + threadIdx.x / p.lanes;
  const bool here = item < p.items;  // all lanes stay for the sum of the warp
  const Position at = position_of(p, here ? item : 0);
  const T* x = p.x.at(at.token, at.head * p.head_dim);
  float values[VPT][N] = {};
  float squares = 0;
#pragma unroll
  for (int v = 0; v < VPT; ++v) {
    const int col = (v * p.lanes + lane) * N;
    if (here && col < p.head_dim) load_vector<N>(x + col, values[v]);
#pragma unroll
    for (int j = 0; j < N; ++j) squares += values[v][j] * values[v][j];
  }
  const float rstd = 1.0f / sqrtf(lane_sum(squares, p.lanes) / static_cast<float>(p.head_dim) + p.eps);
  if (!here) return;
  T* out = p.out.at(at.token, at.head * p.head_dim);
#pragma unroll
  for (int v = 0; v < VPT; ++v) {
    const int col = (v * p.lanes + lane) * N;
    if (col >= p.head_dim) break;
    float weight[N];
    load_vector<N>(p.weight + col, weight);
#pragma unroll
    for (int j = 0; j < N; ++j) values[v][j] *= rstd * weight[j];
    store_vector<N>(out + col, values[v]);
  }
  if (lane == 0) *p.rstd.at(at.token, at.head) = rstd;
}

/// As norm_backward for RMSNorm; a group takes every groups-th head of the whole tensor.
template <class T, int N, int VPT>
__global__ void __launch_bounds__(kThreads) head_norm_backward_kernel(HeadNorm<T> p) {
  extern __shared__ float sums[];  // [groups of the block, D]
  const int lane = threadIdx.x % p.lanes, group = threadIdx.x / p.lanes, groups = kThreads / p.lanes;
  float weight[VPT][N] = {}, dweight[VPT][N] = {};
#pragma unroll
  for (int v = 0; v < VPT; ++v) {
    const int col = (v * p.lanes + lane) * N;
    if (col < p.head_dim) load_vector<N>(p.weight + col, weight[v]);
  }
  const int64_t step = static_cast<int64_t>(gridDim.x) * groups;
  // All groups of a warp make the same number of rounds: they share its sums.
  for (int64_t first = static_cast<int64_t>(blockIdx.x) * groups; first < p.items; first += step) {
    const int64_t item = first + group;
    const bool here = item < p.items;
    const Position at = position_of(p, here ? item : 0);
    const int64_t start = at.head * p.head_dim;
    const float rstd = here ? *p.rstd.at(at.token, at.head) : 0.0f;
    float g[VPT][N] = {}, xhat[VPT][N] = {};
    float sum = 0;
#pragma unroll
    for (int v = 0; v < VPT; ++v) {
      const int col = (v * p.lanes + lane) * N;
      if (here && col < p.head_dim) {
        load_vector<N>(p.dout.at(at.token, start + col), g[v]);
        load_vector<N>(p.x.at(at.token, start + col), xhat[v]);
      }
    }
#pragma unroll
    for (int v = 0; v < VPT; ++v) {
#pragma unroll
      for (int j = 0; j < N; ++j) {
        xhat[v][j] *= rstd;
        dweight[v][j] += g[v][j] * xhat[v][j];
        g[v][j] *= weight[v][j];
        sum += g[v][j] * xhat[v][j];
      }
    }
    const float mean = lane_sum(sum, p.lanes) / static_cast<float>(p.head_dim);
    if (!here) continue;
#pragma unroll
    for (int v = 0; v < VPT; ++v) {
      const int col = (v * p.lanes + lane) * N;
      if (col >= p.head_dim) break;
#pragma unroll
      for (int j = 0; j < N; ++j) g[v][j] = rstd * (g[v][j] - xhat[v][j] * mean);
      store_vector<N>(p.dx.at(at.token, start + col), g[v]);
    }
  }
#pragma unroll
  for (int v = 0; v < VPT; ++v) {
    const int col = (v * p.lanes + lane) * N;
    if (col >= p.head_dim) break;
#pragma unroll
    for (int j = 0; j < N; ++j) sums[group * p.head_dim + col + j] = dweight[v][j];
  }
  __syncthreads();
  for (int d = threadIdx.x; d < p.head_dim; d += kThreads) {
    float total = 0;
    for (int k = 0; k < groups; ++k) total += sums[k * p.head_dim + d];
    p.partials[static_cast<int64_t>(blockIdx.x) * p.head_dim + d] = total;
  }
}

int64_t head_size(int64_t cols, int64_t heads) {
  TRAINER_CHECK(heads > 0 && cols % heads == 0, "head_norm: {} columns in {} heads", cols, heads);
  return cols / heads;
}

/// Lanes of a group, and the kernel's VPT, for a head of `vectors` vectors.
struct HeadLayout {
  int lanes, vectors_per_lane;
};
HeadLayout head_layout(int64_t vectors) {
  int lanes = 1;
  while (lanes < kWarp && lanes < vectors) lanes *= 2;
  if (vectors <= lanes) return {lanes, 1};
  if (vectors > 8 * kWarp)
    fail(ExitCode::config,
         "head_norm: a head of {} vectors is too large; head_dim may be up to 1024, or 256 when it is no"
         " multiple of 8",
         vectors);
  return {lanes, vectors <= 2 * kWarp ? 2 : 8};
}

template <class T, int N>
void forward(const Context& ctx, HeadNorm<T> p) {
  const HeadLayout layout = head_layout(p.head_dim / N);
  p.lanes = layout.lanes;
  const unsigned blocks = grid_size(ceil_div(p.items, kThreads / p.lanes));
  switch (layout.vectors_per_lane) {
    case 1:
      head_norm_forward_kernel<T, N, 1><<<blocks, kThreads, 0, stream_of(ctx)>>>(p);
      break;
    case 2:
      head_norm_forward_kernel<T, N, 2><<<blocks, kThreads, 0, stream_of(ctx)>>>(p);
      break;
    default:
      head_norm_forward_kernel<T, N, 8><<<blocks, kThreads, 0, stream_of(ctx)>>>(p);
  }
  check_cuda(cudaGetLastError(), "head_norm_forward");
}

template <class T, int N>
void backward(const Context& ctx, HeadNorm<T> p, float* dweight, bool accumulate) {
  const HeadLayout layout = head_layout(p.head_dim / N);
  p.lanes = layout.lanes;
  const int64_t groups = kThreads / p.lanes;
  const int64_t blocks = std::min<int64_t>(ceil_div(p.items, groups), 8 * sm_count(ctx));
  p.partials = static_cast<float*>(workspace(ctx, blocks * p.head_dim * 4, "head_norm_backward"));
  const auto shared = static_cast<std::size_t>(groups * p.head_dim * 4);
  switch (layout.vectors_per_lane) {
    case 1:
      head_norm_backward_kernel<T, N, 1><<<grid_size(blocks), kThreads, shared, stream_of(ctx)>>>(p);
      break;
    case 2:
      head_norm_backward_kernel<T, N, 2><<<grid_size(blocks), kThreads, shared, stream_of(ctx)>>>(p);
      break;
    default:
      head_norm_backward_kernel<T, N, 8><<<grid_size(blocks), kThreads, shared, stream_of(ctx)>>>(p);
  }
  check_cuda(cudaGetLastError(), "head_norm_backward");
  add_partials(ctx, p.partials, blocks, {dweight, p.head_dim, nullptr, 0, accumulate});
}

template <class T>
bool vectors_fit(int64_t head_dim, const T* weight) {
  return head_dim % kVector<T> == 0 && reinterpret_cast<std::uintptr_t>(weight) % 16 == 0;
}

}  // namespace

void head_norm_forward(const Context& ctx, const HeadNormForwardArgs& args) {
  const int64_t tokens = args.x.rows, head_dim = head_size(args.x.cols, args.heads);
  check_shape(args.out, "head_norm_forward: out", args.x.dtype, tokens, args.x.cols);
  check_shape(args.rstd, "head_norm_forward: rstd", accumulator_dtype(args.x.dtype), tokens, args.heads);
  if (tokens == 0) return;
  visit_float(args.x.dtype, "head_norm_forward", [&](auto tag) {
    using T = typename decltype(tag)::type;
    HeadNorm<T> p{};
    p.items = tokens * args.heads;
    p.heads = static_cast<int>(args.heads);
    p.head_dim = static_cast<int>(head_dim);
    p.eps = static_cast<float>(args.eps);
    p.x = view_of<T>(args.x);
    p.out = view_of<T>(args.out);
    p.weight = vector_of<T>(args.weight, "head_norm_forward: weight", head_dim);
    p.rstd = view_of<float>(args.rstd);
    TRAINER_CHECK(p.weight != nullptr, "head_norm_forward: no weight");
    if (all_aligned16(args.x, args.out) && vectors_fit(head_dim, p.weight))
      forward<T, kVector<T>>(ctx, p);
    else
      forward<T, 1>(ctx, p);
  });
}

void head_norm_backward(const Context& ctx, const HeadNormBackwardArgs& args) {
  const int64_t tokens = args.x.rows, head_dim = head_size(args.x.cols, args.heads);
  check_shape(args.dout, "head_norm_backward: dout", args.x.dtype, tokens, args.x.cols);
  check_shape(args.dx, "head_norm_backward: dx", args.x.dtype, tokens, args.x.cols);
  check_shape(args.rstd, "head_norm_backward: rstd", accumulator_dtype(args.x.dtype), tokens, args.heads);
  if (tokens == 0) return;
  visit_float(args.x.dtype, "head_norm_backward", [&](auto tag) {
    using T = typename decltype(tag)::type;
    HeadNorm<T> p{};
    p.items = tokens * args.heads;
    p.heads = static_cast<int>(args.heads);
    p.head_dim = static_cast<int>(head_dim);
    p.x = view_of<T>(args.x);
    p.dout = view_of<T>(args.dout);
    p.dx = view_of<T>(args.dx);
    p.weight = vector_of<T>(args.weight, "head_norm_backward: weight", head_dim);
    p.rstd = view_of<float>(args.rstd);
    float* dweight = vector_of<float>(args.dweight, "head_norm_backward: dweight", head_dim);
    TRAINER_CHECK(p.weight != nullptr && dweight != nullptr, "head_norm_backward: weight or dweight is absent");
    if (all_aligned16(args.x, args.dout, args.dx) && vectors_fit(head_dim, p.weight))
      backward<T, kVector<T>>(ctx, p, dweight, args.accumulate);
    else
      backward<T, 1>(ctx, p, dweight, args.accumulate);
  });
}

}  // namespace trainer::ops::cuda
