// Cross-entropy of a rank with the whole vocabulary: each logit is read from memory once and its gradient written once.
// A block keeps its row in shared memory until the softmax is known. What does not fit there (128k columns of 16 bits
// are 256 KB) is read a second time, as soon as possible after the first, so that the L2 cache still has it.
#include <algorithm>

#include "kernels/cuda/cross_entropy.cuh"

namespace trainer::ops::cuda {
namespace {

constexpr int kAhead = 4;  // vectors read before the first is used

template <class T>
struct Whole {
  View<T> logits;
  const int32_t* targets;
  const UpdateState* state;
  double* losses;  // [tokens, 2] scratch: loss and z-loss of each token
  int64_t tokens, cols, valid_cols;
  int kept;  // vectors of a row that shared memory holds
  double grad_scale, z_loss;
};

/// A row on its way through a block; beyond the last token there is nothing of it.
template <class T>
struct Row {
  int64_t token;
  bool there, ignored;
  T* data;
  RowCut<T> cut;
  int kept;  // vectors in shared memory
  int32_t target;

  __device__ Row(const Whole<T>& p, int64_t token)
      : token(token),
        there(token < p.tokens),
        ignored(!there || p.targets[token] == kIgnoredTarget),
        data(p.logits.at(there ? token : 0, 0)),
        cut(data, there ? p.valid_cols : 0),
        kept(static_cast<int>(min(static_cast<int64_t>(p.kept), cut.vectors))),
        target(ignored ? 0 : p.targets[token]) {}

  __device__ T* vector(int64_t v) const { return data + cut.head + v * kVector<T>; }
};

/// body(column) for the elements outside the row's vectors.
template <class T, class Body>
__device__ inline void for_each_single(const Row<T>& row, int64_t valid_cols, const Body& body) {
  if (!row.there) return;
  if (threadIdx.x < row.cut.head) body(threadIdx.x);
  if (row.cut.tail + threadIdx.x < valid_cols) body(row.cut.tail + threadIdx.x);
}

/// body(v, vector) for this thread's vectors of the row that shared memory does not hold; several are read before the
/// first is used.
template <int kThreads, class T, class Body>
__device__ inline void for_each_beyond(const Row<T>& row, const Body& body) {
  for (int64_t v = row.kept + threadIdx.x; v < row.cut.vectors; v += kAhead * kThreads) {
    Packed<T, kVector<T>> ahead[kAhead];
#pragma unroll
    for (int a = 0; a < kAhead; ++a)
      if (v + a * kThreads < row.cut.vectors) ahead[a] = Packed<T, kVector<T>>::load(row.vector(v + a * kThreads));
#pragma unroll
    for (int a = 0; a < kAhead; ++a)
      if (v + a * kThreads < row.cut.vectors) body(v + a * kThreads, ahead[a]);
  }
}

template <class T>
__device__ inline void store_gradient(const Row<T>& row, const RowGradient<T>& gradient, int64_t v,
                                      const Packed<T, kVector<T>>& logits) {
  float x[kVector<T>];
  logits.unpack(x);
  gradient.apply(x, row.cut.head + v * kVector<T>);
  store_vector<kVector<T>>(row.vector(v), x);
}

/// One way through the block's share of memory: the gradient of the row `out` leaves while the logits of the row `in`
/// come and are added to `softmax`. A thread has the same places of shared memory for both, and nobody else has them.
template <int kThreads, class T>
__device__ void exchange_rows(const Whole<T>& p, const Row<T>& out, const RowGradient<T>& gradient, const Row<T>& in,
                              OnlineSoftmax<T>& softmax, Packed<T, kVector<T>>* kept) {
  using Vector = Packed<T, kVector<T>>;
  const auto add = [&](const Vector& logits) {
    float x[kVector<T>];
    logits.unpack(x);
    softmax.add(x);
  };
  for_each_beyond<kThreads>(out, [&](int64_t v, const Vector& x) { store_gradient(out, gradient, v, x); });
  for_each_single(out, p.valid_cols, [&](int64_t col) {
    float x[1] = {widen(out.data[col])};
    gradient.apply(x, col);
    out.data[col] = narrow<T>(x[0]);
  });
  if (out.there) zero_columns(out.data, p.valid_cols, p.cols);

  const int rounds_end = max(out.kept, in.kept);
  for (int v = threadIdx.x; v < rounds_end; v += kAhead * kThreads) {
    Vector ahead[kAhead];
#pragma unroll
    for (int a = 0; a < kAhead; ++a)
      if (v + a * kThreads < in.kept) ahead[a] = Vector::load(in.vector(v + a * kThreads));
#pragma unroll
    for (int a = 0; a < kAhead; ++a)
      if (v + a * kThreads < out.kept) store_gradient(out, gradient, v + a * kThreads, kept[v + a * kThreads]);
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      if (v + a * kThreads >= in.kept) break;
      kept[v + a * kThreads] = ahead[a];
      add(ahead[a]);
    }
  }

  for_each_beyond<kThreads>(in, [&](int64_t, const Vector& x) { add(x); });
  for_each_single(in, p.valid_cols, [&](int64_t col) {
    const float x[1] = {widen(in.data[col])};
    softmax.add(x);
  });
}

template <class T, int kThreads, int kBlocksPerSm>
__global__ void __launch_bounds__(kThreads, kBlocksPerSm) cross_entropy_kernel(Whole<T> p) {
  extern __shared__ uint4 shared_row[];
  __shared__ RowGradient<T> shared_gradient;
  auto* kept = reinterpret_cast<Packed<T, kVector<T>>*>(shared_row);
  Row<T> out(p, p.tokens), in(p, blockIdx.x);
  RowGradient<T> gradient{};
  while (true) {
    // Asked for early: thread 0 needs it when the row is through, and must find it before the gradient takes its place.
    const float target_logit = threadIdx.x == 0 && !in.ignored ? widen(in.data[in.target]) : 0.0f;
    OnlineSoftmax<T> softmax;
    exchange_rows<kThreads>(p, out, gradient, in, softmax, kept);
    if (!in.there) return;
    join_block(softmax);
    if (threadIdx.x == 0) {
      const Softmax all{softmax.max, softmax.sum, softmax.max + log(static_cast<double>(softmax.sum)), target_logit};
      keep_loss(p.losses, in.token, all, in.ignored, p.z_loss);
      const double scale = p.grad_scale * (p.state != nullptr ? p.state->loss_scale : 1.0);
      shared_gradient = RowGradient<T>(all, in.target, in.ignored, scale, p.z_loss);
    }
    __syncthreads();
    gradient = shared_gradient;
    out = in;
    in = Row<T>(p, in.token + gridDim.x);
  }
}

int device_attribute(const Context& ctx, cudaDeviceAttr attribute) {
  int value = 0;
  check_cuda(cudaDeviceGetAttribute(&value, attribute, ctx.device.index), "cross_entropy");
  return value;
}

template <class T, int kThreads, int kBlocksPerSm>
void launch(const Context& ctx, Whole<T> p, int64_t room) {
  constexpr int64_t kRound = kThreads * 16;  // bytes that the block's threads hold with a vector each
  const auto kernel = cross_entropy_kernel<T, kThreads, kBlocksPerSm>;
  const int64_t row_vectors = ceil_div(p.valid_cols, kVector<T>);
  const int64_t bytes = std::min(ceil_div(row_vectors, kThreads), room / kRound) * kRound;
  p.kept = static_cast<int>(bytes / 16);
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
             "cross_entropy");
  int resident = 0;
  check_cuda(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel, kThreads, static_cast<size_t>(bytes)),
             "cross_entropy");
  const int64_t blocks = std::min<int64_t>(p.tokens, int64_t{std::max(resident, 1)} * sm_count(ctx));
  kernel<<<grid_size(blocks), kThreads, static_cast<size_t>(bytes), stream_of(ctx)>>>(p);
  check_cuda(cudaGetLastError(), "cross_entropy");
}

/// Two blocks a multiprocessor where two rows fit, so that one works while the other agrees on its softmax; otherwise
/// one large block.
template <class T>
void launch_for_width(const Context& ctx, const Whole<T>& p) {
  constexpr int64_t kStatic = 2048;    // the kernel's other shared memory, at most
  constexpr int64_t kReserved = 1024;  // of a block, by the driver
  const int64_t one = device_attribute(ctx, cudaDevAttrMaxSharedMemoryPerBlockOptin) - kStatic;
  const int64_t two = device_attribute(ctx, cudaDevAttrMaxSharedMemoryPerMultiprocessor) / 2 - kStatic - kReserved;
  if (ceil_div(p.valid_cols, kVector<T> * 512) * 512 * 16 <= two) return launch<T, 512, 2>(ctx, p, two);
  launch<T, 1024, 1>(ctx, p, one);
}

/// Losses alone: the statistics of one part, which is the whole.
void evaluate(const Context& ctx, const CrossEntropyArgs& args) {
  const int64_t tokens = args.logits.rows;
  constexpr int64_t kLossBytes = 16;  // of a token, what cross_entropy_finish keeps at the start of the workspace
  auto* scratch = static_cast<char*>(workspace(ctx, tokens * (kLossBytes + 3 * 4), "cross_entropy"));
  const Tensor stats = tensor_over(scratch + tokens * kLossBytes, Dtype::f32, tokens, 3);
  CrossEntropyStatsArgs first;
  first.logits = args.logits;
  first.targets = args.targets;
  first.stats = stats;
  first.valid_cols = args.valid_cols;
  cuda::cross_entropy_stats(ctx, first);
  CrossEntropyFinishArgs second;
  second.logits = args.logits;
  second.targets = args.targets;
  second.stats = stats;
  second.sums = args.sums;
  second.valid_cols = args.valid_cols;
  second.z_loss = args.z_loss;
  second.backward = false;
  cuda::cross_entropy_finish(ctx, second);
}

}  // namespace

void cross_entropy(const Context& ctx, const CrossEntropyArgs& args) {
  const int64_t tokens = args.logits.rows;
  check_shape(args.targets, "cross_entropy: targets", Dtype::i32, 1, tokens);
  check_shape(args.sums, "cross_entropy: sums", Dtype::f64, 1, 3);
  TRAINER_CHECK(args.valid_cols > 0 && args.valid_cols <= args.logits.cols, "cross_entropy: {} valid columns of {}",
                args.valid_cols, args.logits.cols);
  if (tokens == 0) return;
  if (!args.backward) return evaluate(ctx, args);
  auto* losses = static_cast<double*>(workspace(ctx, tokens * 16, "cross_entropy"));
  const auto* targets = args.targets.as<int32_t>();
  visit_float(args.logits.dtype, "cross_entropy", [&](auto tag) {
    using T = typename decltype(tag)::type;
    launch_for_width(ctx, Whole<T>{view_of<T>(args.logits), targets, args.state, losses, tokens, args.logits.cols,
                                   args.valid_cols, 0, args.grad_scale, args.z_loss});
  });
  add_losses(ctx, losses, targets, tokens, args.sums.as<double>());
}

}  // namespace trainer::ops::cuda
