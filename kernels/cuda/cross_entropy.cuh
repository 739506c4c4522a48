// What the kernels of cross-entropy share: a row of logits cut into vectors, its softmax, its gradient.
#pragma once
#include <cmath>

#include "kernels/cuda/common.cuh"

namespace trainer::ops::cuda {

/// A row cut into elements before the first 16-byte boundary, whole vectors, and elements behind the last: rows of an
/// odd vocabulary start anywhere.
template <class T>
struct RowCut {
  int64_t head, vectors, tail;  // tail: first column behind the vectors
  __device__ RowCut(const T* row, int64_t cols) {
    constexpr int N = kVector<T>;
    const auto address = reinterpret_cast<std::uintptr_t>(row);
    head = min(static_cast<int64_t>((16 - address % 16) % 16 / sizeof(T)), cols);
    vectors = (cols - head) / N;
    tail = head + vectors * N;
  }
};

/// exp(x). Float32 rows get the accurate one. For 16-bit rows it would be the bottleneck: they get the special function
/// unit's 2^x, which errs by 2e-6 at most where the result matters and is 0 below the smallest normal number.
template <class T>
__device__ inline float exponential(float x) {
  if constexpr (sizeof(T) == 2) {
    constexpr float kLog2OfE = 1.4426950408889634f;
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x * kLog2OfE));
    return result;
  } else {
    return expf(x);
  }
}

/// Maximum and sum of exp(x - maximum), online.
template <class T>
struct OnlineSoftmax {
  float max = -INFINITY;
  float sum = 0;
  /// Makes `candidate` the maximum when it is larger.
  __device__ void raise(float candidate) {
    if (candidate <= max) return;
    sum *= exponential<T>(max - candidate);  // 0 x 0 at first
    max = candidate;
  }
  template <int N>
  __device__ void add(const float (&x)[N]) {
    float largest = x[0];
#pragma unroll
    for (int i = 1; i < N; ++i) largest = fmaxf(largest, x[i]);
    raise(largest);
    if (max == -INFINITY) return;  // only -inf so far: exp(-inf - -inf) is not 0
#pragma unroll
    for (int i = 0; i < N; ++i) sum += exponential<T>(x[i] - max);
  }
  __device__ void join(float other_max, float other_sum) {
    raise(other_max);
    if (other_max != -INFINITY) sum += other_sum * exponential<T>(other_max - max);
  }
};

/// The parts of the lanes in lane 0, in a fixed order. A NaN stays one: it is in the sums.
template <class T>
__device__ inline void join_warp(OnlineSoftmax<T>& softmax) {
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    const float other_max = __shfl_down_sync(0xffffffffu, softmax.max, offset);
    const float other_sum = __shfl_down_sync(0xffffffffu, softmax.sum, offset);
    softmax.join(other_max, other_sum);
  }
}

/// The parts of all threads of the block in thread 0: within each warp, then over the warps.
template <class T>
__device__ inline void join_block(OnlineSoftmax<T>& softmax) {
  __shared__ float maxima[kWarp], sums[kWarp];
  const unsigned warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  join_warp(softmax);
  if (lane == 0) maxima[warp] = softmax.max, sums[warp] = softmax.sum;
  __syncthreads();
  if (warp != 0) return;
  const bool there = lane < blockDim.x / kWarp;
  softmax.max = there ? maxima[lane] : -INFINITY;
  softmax.sum = there ? sums[lane] : 0.0f;
  join_warp(softmax);
}

/// What the columns of all ranks say of one token.
struct Softmax {
  double max, sum, lse, target_logit;
};

/// Loss and z-loss of a token, to be added later in the order of the tokens.
__device__ inline void keep_loss(double* losses, int64_t token, const Softmax& all, bool ignored, double z_loss) {
  losses[2 * token] = ignored ? 0.0 : all.lse - all.target_logit;
  losses[2 * token + 1] = ignored ? 0.0 : z_loss * all.lse * all.lse;
}

/// dlogits of a row: factor exp(logit - max), minus `scale` at the target; all zero for an ignored one.
template <class T>
struct RowGradient {
  float max, factor, scale;
  int64_t target_col;
  bool ignored;

  RowGradient() = default;
  /// `target_col` counts from this rank's first column. `scale`: loss_scale * grad_scale.
  __device__ RowGradient(const Softmax& all, int64_t target_col, bool ignored, double scale, double z_loss)
      : max(static_cast<float>(all.max)),
        factor(static_cast<float>(scale * (1.0 + 2.0 * z_loss * all.lse) / all.sum)),
        scale(static_cast<float>(scale)),
        target_col(target_col),
        ignored(ignored) {}

  template <int N>
  __device__ void apply(float (&x)[N], int64_t col) const {
    if (ignored) {
#pragma unroll
      for (int i = 0; i < N; ++i) x[i] = 0.0f;
      return;
    }
#pragma unroll
    for (int i = 0; i < N; ++i) x[i] = factor * exponential<T>(x[i] - max);
    if (target_col >= col && target_col < col + N) {
#pragma unroll
      for (int i = 0; i < N; ++i)
        if (target_col == col + i) x[i] -= scale;
    }
  }
};

template <class T, int N>
__device__ inline void store_zeros(T* to) {
  const float zeros[N] = {};
  store_vector<N>(to, zeros);
}

/// Columns first .. cols of a row, by the whole block.
template <class T>
__device__ inline void zero_columns(T* row, int64_t first, int64_t cols) {
  constexpr int N = kVector<T>;
  const RowCut<T> cut(row + first, cols - first);
  T* from = row + first;
  if (threadIdx.x < cut.head) store_zeros<T, 1>(from + threadIdx.x);
  for (int64_t v = threadIdx.x; v < cut.vectors; v += blockDim.x) store_zeros<T, N>(from + cut.head + v * N);
  if (cut.tail + threadIdx.x < cols - first) store_zeros<T, 1>(from + cut.tail + threadIdx.x);
}

/// sums [3] += losses, z-losses [tokens, 2] and the number of targets, in a fixed order.
void add_losses(const Context& ctx, const double* losses, const int32_t* targets, int64_t tokens, double* sums);

}  // namespace trainer::ops::cuda
