// Vocabulary-parallel cross-entropy in two halves. A block takes a token: the logits are read once for the statistics,
// and read and overwritten once for the gradient.
#include <cmath>

#include "kernels/cuda/common.cuh"

namespace trainer::ops::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kBlocksPerSm = 4;  // 32 registers a thread
constexpr int kAhead = 4;        // vectors read before the first is used

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

/// exp(x): float32 rows get the accurate one; for 16-bit rows it would be the bottleneck, and __expf errs by 2e-6 at
/// most where the result matters.
template <class T>
__device__ inline float exponential(float x) {
  return sizeof(T) == 2 ? __expf(x) : expf(x);
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

template <class T>
struct Stats {
  View<T> logits;
  View<float> stats;
  const int32_t* targets;
  int64_t first_col, valid_cols;
};

template <class T>
__global__ void __launch_bounds__(kThreads, kBlocksPerSm) cross_entropy_stats_kernel(Stats<T> p) {
  constexpr int N = kVector<T>;
  const int64_t token = blockIdx.x;
  const T* row = p.logits.at(token, 0);
  const RowCut<T> cut(row, p.valid_cols);
  OnlineSoftmax<T> softmax;
  const auto add_one = [&](int64_t col) {
    const float x[1] = {widen(row[col])};
    softmax.add(x);
  };
  if (threadIdx.x < cut.head) add_one(threadIdx.x);
  int64_t v = threadIdx.x;
  for (; v + (kAhead - 1) * kThreads < cut.vectors; v += kAhead * kThreads) {
    Packed<T, N> ahead[kAhead];
#pragma unroll
    for (int a = 0; a < kAhead; ++a) ahead[a] = Packed<T, N>::load(row + cut.head + (v + a * kThreads) * N);
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      float x[N];
      ahead[a].unpack(x);
      softmax.add(x);
    }
  }
  for (; v < cut.vectors; v += kThreads) {
    float x[N];
    load_vector<N>(row + cut.head + v * N, x);
    softmax.add(x);
  }
  if (cut.tail + threadIdx.x < p.valid_cols) add_one(cut.tail + threadIdx.x);

  // The threads' parts, in a fixed order: within each warp, then over the warps. A NaN stays one: it is in the sums.
  __shared__ float maxima[kThreads / kWarp], sums[kThreads / kWarp];
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    const float other_max = __shfl_down_sync(0xffffffffu, softmax.max, offset);
    const float other_sum = __shfl_down_sync(0xffffffffu, softmax.sum, offset);
    softmax.join(other_max, other_sum);
  }
  if (threadIdx.x % kWarp == 0) {
    maxima[threadIdx.x / kWarp] = softmax.max;
    sums[threadIdx.x / kWarp] = softmax.sum;
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int w = 1; w < kThreads / kWarp; ++w) softmax.join(maxima[w], sums[w]);
  const int64_t col = p.targets[token] - p.first_col;
  const bool here = p.targets[token] != kIgnoredTarget && col >= 0 && col < p.valid_cols;
  float* stats = p.stats.at(token, 0);
  stats[0] = softmax.max;
  stats[1] = softmax.sum;
  stats[2] = here ? widen(row[col]) : 0.0f;
}

template <class T>
struct Finish {
  View<T> logits;
  View<float> stats;
  const int32_t* targets;
  const UpdateState* state;
  double* losses;  // [tokens, 2] scratch: loss and z-loss of each token
  int64_t tokens, cols, first_col, valid_cols;
  int parts;
  double grad_scale, z_loss;
};

/// What the columns of all ranks say of one token.
struct Softmax {
  double max, sum, lse, target_logit;
};
template <class T>
__device__ Softmax combine(const Finish<T>& p, int64_t token) {
  Softmax all{-INFINITY, 0, 0, 0};
  for (int part = 0; part < p.parts; ++part)
    all.max = fmax(all.max, static_cast<double>(*p.stats.at(part * p.tokens + token, 0)));
  for (int part = 0; part < p.parts; ++part) {
    const float* stats = p.stats.at(part * p.tokens + token, 0);
    all.sum += static_cast<double>(stats[1]) * exp(static_cast<double>(stats[0]) - all.max);
    all.target_logit += static_cast<double>(stats[2]);
  }
  all.lse = all.max + log(all.sum);
  return all;
}

template <class T>
__device__ Softmax combine_and_keep_loss(const Finish<T>& p, int64_t token) {
  const Softmax all = combine(p, token);
  const bool ignored = p.targets[token] == kIgnoredTarget;
  p.losses[2 * token] = ignored ? 0.0 : all.lse - all.target_logit;
  p.losses[2 * token + 1] = ignored ? 0.0 : p.z_loss * all.lse * all.lse;
  return all;
}

template <class T>
__global__ void losses_kernel(Finish<T> p) {
  const int64_t token = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (token < p.tokens) combine_and_keep_loss(p, token);
}

/// dlogits of a row: factor exp(logit - max), minus `scale` at the target.
template <class T>
struct RowGradient {
  float max, factor, scale;
  int64_t target_col;
  template <int N>
  __device__ void apply(float (&x)[N], int64_t col) const {
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

template <class T>
__device__ void zero_columns(T* row, int64_t first, int64_t cols) {
  constexpr int N = kVector<T>;
  const RowCut<T> cut(row + first, cols - first);
  T* from = row + first;
  if (threadIdx.x < cut.head) store_zeros<T, 1>(from + threadIdx.x);
  for (int64_t v = threadIdx.x; v < cut.vectors; v += kThreads) store_zeros<T, N>(from + cut.head + v * N);
  if (cut.tail + threadIdx.x < cols - first) store_zeros<T, 1>(from + cut.tail + threadIdx.x);
}

template <class T>
__global__ void __launch_bounds__(kThreads, kBlocksPerSm) cross_entropy_gradient_kernel(Finish<T> p) {
  constexpr int N = kVector<T>;
  __shared__ RowGradient<T> shared;
  const int64_t token = blockIdx.x;
  T* row = p.logits.at(token, 0);
  const bool ignored = p.targets[token] == kIgnoredTarget;
  if (threadIdx.x == 0) {
    const Softmax all = combine_and_keep_loss(p, token);
    const double scale = p.grad_scale * (p.state != nullptr ? p.state->loss_scale : 1.0);
    shared.max = static_cast<float>(all.max);
    shared.factor = static_cast<float>(scale * (1.0 + 2.0 * p.z_loss * all.lse) / all.sum);
    shared.scale = static_cast<float>(scale);
    shared.target_col = p.targets[token] - p.first_col;
  }
  if (ignored) return zero_columns(row, 0, p.cols);
  __syncthreads();
  const RowGradient<T> gradient = shared;
  const RowCut<T> cut(row, p.valid_cols);
  const auto one = [&](int64_t col) {
    float x[1] = {widen(row[col])};
    gradient.apply(x, col);
    row[col] = narrow<T>(x[0]);
  };
  if (threadIdx.x < cut.head) one(threadIdx.x);
  int64_t v = threadIdx.x;
  for (; v + (kAhead - 1) * kThreads < cut.vectors; v += kAhead * kThreads) {
    Packed<T, N> ahead[kAhead];
#pragma unroll
    for (int a = 0; a < kAhead; ++a) ahead[a] = Packed<T, N>::load(row + cut.head + (v + a * kThreads) * N);
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      const int64_t col = cut.head + (v + a * kThreads) * N;
      float x[N];
      ahead[a].unpack(x);
      gradient.apply(x, col);
      store_vector<N>(row + col, x);
    }
  }
  for (; v < cut.vectors; v += kThreads) {
    const int64_t col = cut.head + v * N;
    float x[N];
    load_vector<N>(row + col, x);
    gradient.apply(x, col);
    store_vector<N>(row + col, x);
  }
  if (cut.tail + threadIdx.x < p.valid_cols) one(cut.tail + threadIdx.x);
  zero_columns(row, p.valid_cols, p.cols);
}

/// One block: each thread adds its tokens in order, then the threads are added in order.
__global__ void __launch_bounds__(1024)
    loss_sums_kernel(const double* losses, const int32_t* targets, int64_t tokens, double* sums) {
  double loss = 0, z_loss = 0, count = 0;
  for (int64_t token = threadIdx.x; token < tokens; token += blockDim.x) {
    loss += losses[2 * token];
    z_loss += losses[2 * token + 1];
    count += targets[token] == kIgnoredTarget ? 0.0 : 1.0;
  }
  loss = block_sum(loss);
  z_loss = block_sum(z_loss);
  count = block_sum(count);
  if (threadIdx.x != 0) return;
  sums[0] += loss;
  sums[1] += z_loss;
  sums[2] += count;
}

void check_common(const Tensor& logits, const Tensor& targets, int64_t valid_cols) {
  check_shape(targets, "cross_entropy: targets", Dtype::i32, 1, logits.rows);
  TRAINER_CHECK(valid_cols >= 0 && valid_cols <= logits.cols, "cross_entropy: {} valid columns of {}", valid_cols,
                logits.cols);
}

}  // namespace

void cross_entropy_stats(const Context& ctx, const CrossEntropyStatsArgs& args) {
  check_common(args.logits, args.targets, args.valid_cols);
  check_shape(args.stats, "cross_entropy_stats: stats", accumulator_dtype(args.logits.dtype), args.logits.rows, 3);
  if (args.logits.rows == 0) return;
  visit_float(args.logits.dtype, "cross_entropy_stats", [&](auto tag) {
    using T = typename decltype(tag)::type;
    const Stats<T> p{view_of<T>(args.logits), view_of<float>(args.stats), args.targets.as<int32_t>(), args.first_col,
                     args.valid_cols};
    cross_entropy_stats_kernel<<<grid_size(args.logits.rows), kThreads, 0, stream_of(ctx)>>>(p);
    check_cuda(cudaGetLastError(), "cross_entropy_stats");
  });
}

void cross_entropy_finish(const Context& ctx, const CrossEntropyFinishArgs& args) {
  const int64_t tokens = args.logits.rows;
  check_common(args.logits, args.targets, args.valid_cols);
  check_shape(args.stats, "cross_entropy_finish: stats", accumulator_dtype(args.logits.dtype), args.parts * tokens, 3);
  check_shape(args.sums, "cross_entropy_finish: sums", Dtype::f64, 1, 3);
  if (tokens == 0) return;
  auto* losses = static_cast<double*>(workspace(ctx, tokens * 16, "cross_entropy_finish"));
  const auto* targets = args.targets.as<int32_t>();
  visit_float(args.logits.dtype, "cross_entropy_finish", [&](auto tag) {
    using T = typename decltype(tag)::type;
    const Finish<T> p{view_of<T>(args.logits),
                      view_of<float>(args.stats),
                      targets,
                      args.state,
                      losses,
                      tokens,
                      args.logits.cols,
                      args.first_col,
                      args.valid_cols,
                      args.parts,
                      args.grad_scale,
                      args.z_loss};
    if (args.backward)
      cross_entropy_gradient_kernel<<<grid_size(tokens), kThreads, 0, stream_of(ctx)>>>(p);
    else
      losses_kernel<<<grid_size(ceil_div(tokens, 256)), 256, 0, stream_of(ctx)>>>(p);
    check_cuda(cudaGetLastError(), "cross_entropy_finish");
  });
  loss_sums_kernel<<<1, 1024, 0, stream_of(ctx)>>>(losses, targets, tokens, args.sums.as<double>());
  check_cuda(cudaGetLastError(), "cross_entropy_finish");
}

}  // namespace trainer::ops::cuda
