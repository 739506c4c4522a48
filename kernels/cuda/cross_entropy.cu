// Vocabulary-parallel cross-entropy in two halves. A block takes a token: the logits are read once for the statistics,
// and read and overwritten once for the gradient.
#include "kernels/cuda/cross_entropy.cuh"

namespace trainer::ops::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kBlocksPerSm = 4;  // 32 registers a thread
constexpr int kAhead = 4;        // vectors read before the first is used

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

  join_block(softmax);
  if (threadIdx.x != 0) return;
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
  keep_loss(p.losses, token, all, p.targets[token] == kIgnoredTarget, p.z_loss);
  return all;
}

template <class T>
__global__ void losses_kernel(Finish<T> p) {
  const int64_t token = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (token < p.tokens) combine_and_keep_loss(p, token);
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
    shared = RowGradient<T>(all, p.targets[token] - p.first_col, ignored, scale, p.z_loss);
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

void add_losses(const Context& ctx, const double* losses, const int32_t* targets, int64_t tokens, double* sums) {
  loss_sums_kernel<<<1, 1024, 0, stream_of(ctx)>>>(losses, targets, tokens, sums);
  check_cuda(cudaGetLastError(), "cross_entropy: sums");
}

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
  add_losses(ctx, losses, targets, tokens, args.sums.as<double>());
}

}  // namespace trainer::ops::cuda
