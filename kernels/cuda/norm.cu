// LayerNorm and RMSNorm of rows, fused with the residual addition. A row stays in registers: it is read once and
// written once. Short rows are a warp's, longer ones a block's.
#include <algorithm>

#include "kernels/cuda/common.cuh"

namespace trainer::ops::cuda {
namespace {

constexpr int kWarpsPerBlock = 4;  // where a row is a warp's

/// How a row is laid over threads: each holds up to `per_thread` (the kernels' VPT) vectors of N elements.
struct RowLayout {
  bool warp_row;
  int per_thread;
  int threads;  // of a block
};

int threads_for(int64_t vectors, int per_thread) {
  return static_cast<int>(ceil_div(ceil_div(vectors, per_thread), kWarp) * kWarp);
}

[[noreturn]] void refuse_width(const char* op) {
  fail(ExitCode::config,
       "{}: a hidden size that is a multiple of 8 may be up to 16384 (8192 in float32), any other up to 2048", op);
}

/// The sum over the threads of a row.
template <bool kWarpRow>
__device__ inline float row_sum(float x) {
  return kWarpRow ? lane_sum(x) : block_sum(x);
}

// ---- forward ------------------------------------------------------------------------------------------------------
constexpr int kForwardThreads = 256;  // of a block whose row it is, at most

/// Many vectors a thread: all are read before the first is used, and few threads have to agree on a sum.
RowLayout forward_layout(int64_t vectors) {
  if (vectors <= 4 * kWarp) return {true, 4, kWarp * kWarpsPerBlock};
  const int per_thread = vectors <= 4 * 128 ? 4 : 8;
  if (threads_for(vectors, per_thread) > kForwardThreads) refuse_width("add_norm_forward");
  return {false, per_thread, threads_for(vectors, per_thread)};
}

template <class T>
struct NormForward {
  bool layernorm;
  float eps;
  int64_t rows;
  int cols;
  View<T> x, branch, sum, out;  // branch: none when data is null; sum: not written when data is null
  const T *weight, *bias;
  float *mean, *rstd;
};

template <class T, int N, int VPT, bool kWarpRow>
__global__ void __launch_bounds__(kWarpRow ? kWarp* kWarpsPerBlock : kForwardThreads)
    add_norm_forward_kernel(NormForward<T> p) {
  const int lane = kWarpRow ? threadIdx.x % kWarp : threadIdx.x;
  const int lanes = kWarpRow ? kWarp : blockDim.x;
  const int64_t row = kWarpRow ? static_cast<int64_t>(blockIdx.x) * kWarpsPerBlock + threadIdx.x / kWarp : blockIdx.x;
  if (row >= p.rows) return;  // a whole warp, or none of the block
  const int vectors = p.cols / N;

  // 1. sum = x + branch, rounded; the statistics are those of the rounded values.
  Packed<T, N> packed[VPT];
#pragma unroll
  for (int v = 0; v < VPT; ++v)
    if (v * lanes + lane < vectors) packed[v] = Packed<T, N>::load(p.x.at(row, (v * lanes + lane) * N));
  if (p.branch.data != nullptr) {
    Packed<T, N> branch[VPT];
#pragma unroll
    for (int v = 0; v < VPT; ++v)
      if (v * lanes + lane < vectors) branch[v] = Packed<T, N>::load(p.branch.at(row, (v * lanes + lane) * N));
#pragma unroll
    for (int v = 0; v < VPT; ++v) {
      float a[N], b[N];
      packed[v].unpack(a);
      branch[v].unpack(b);
#pragma unroll
      for (int j = 0; j < N; ++j) a[j] += b[j];
      packed[v] = Packed<T, N>::pack(a);
    }
  }
  if (p.sum.data != nullptr) {
#pragma unroll
    for (int v = 0; v < VPT; ++v)
      if (v * lanes + lane < vectors) packed[v].store(p.sum.at(row, (v * lanes + lane) * N));
  }

  // 2. The mean, then the variance about it: two passes over registers, so that a large mean costs no digits.
  const float inverse_cols = 1.0f / static_cast<float>(p.cols);
  float mean = 0;
  if (p.layernorm) {
    float total = 0;
#pragma unroll
    for (int v = 0; v < VPT; ++v) {
      if (v * lanes + lane >= vectors) break;
      float x[N];
      packed[v].unpack(x);
#pragma unroll
      for (int j = 0; j < N; ++j) total += x[j];
    }
    mean = row_sum<kWarpRow>(total) * inverse_cols;
  }
  float squares = 0;
#pragma unroll
  for (int v = 0; v < VPT; ++v) {
    if (v * lanes + lane >= vectors) break;
    float x[N];
    packed[v].unpack(x);
#pragma unroll
    for (int j = 0; j < N; ++j) squares += (x[j] - mean) * (x[j] - mean);
  }
  const float rstd = 1.0f / sqrtf(row_sum<kWarpRow>(squares) * inverse_cols + p.eps);

  // 3. out = (sum - mean) rstd weight + bias
#pragma unroll
  for (int v = 0; v < VPT; ++v) {
    const int col = (v * lanes + lane) * N;
    if (col >= p.cols) break;
    float x[N], weight[N];
    packed[v].unpack(x);
    load_vector<N>(p.weight + col, weight);
#pragma unroll
    for (int j = 0; j < N; ++j) x[j] = (x[j] - mean) * rstd * weight[j];
    if (p.bias != nullptr) {
      float bias[N];
      load_vector<N>(p.bias + col, bias);
#pragma unroll
      for (int j = 0; j < N; ++j) x[j] += bias[j];
    }
    store_vector<N>(p.out.at(row, col), x);
  }
  if (lane == 0) {
    if (p.layernorm) p.mean[row] = mean;
    p.rstd[row] = rstd;
  }
}

template <class T, int N, int VPT, bool kWarpRow>
void launch_forward(const Context& ctx, const NormForward<T>& p, int threads) {
  const int64_t blocks = kWarpRow ? ceil_div(p.rows, kWarpsPerBlock) : p.rows;
  add_norm_forward_kernel<T, N, VPT, kWarpRow><<<grid_size(blocks), threads, 0, stream_of(ctx)>>>(p);
  check_cuda(cudaGetLastError(), "add_norm_forward");
}

template <class T, int N>
void forward(const Context& ctx, const NormForward<T>& p) {
  const RowLayout layout = forward_layout(p.cols / N);
  if (layout.warp_row) return launch_forward<T, N, 4, true>(ctx, p, layout.threads);
  if (layout.per_thread == 4) return launch_forward<T, N, 4, false>(ctx, p, layout.threads);
  launch_forward<T, N, 8, false>(ctx, p, layout.threads);
}

// ---- backward -----------------------------------------------------------------------------------------------------
template <class T>
struct NormBackward {
  int64_t rows;
  int cols;
  View<T> dout, sum, dresidual, dx;  // dresidual: none when data is null
  const T* weight;
  const float *mean, *rstd;
  float* partials;  // [groups, cols], or [groups, 2 cols]: dweight and dbias
  bool has_bias;
  int stages;  // rows that a group has in shared memory or on their way there

  __host__ __device__ int tensors_read() const { return dresidual.data != nullptr ? 3 : 2; }
};

constexpr int kMaxStages = 3;

/// Starts copying a vector to shared memory. In the background where the card can: registers are short here.
template <class Vector>
__device__ inline void start_copy(Vector* to, const void* from) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  if constexpr (sizeof(Vector) == 16) {
    const auto address = static_cast<unsigned>(__cvta_generic_to_shared(to));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(from) : "memory");
    return;
  }
#endif
  *to = *static_cast<const Vector*>(from);
}
/// Closes the batch of copies that a thread has started.
__device__ inline void end_batch() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
/// Waits until all of a thread's batches but the last stages - 1 are there.
__device__ inline void wait_for_batch([[maybe_unused]] int stages) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  static_assert(kMaxStages == 3, "a case for each number of stages");
  if (stages == 3)
    asm volatile("cp.async.wait_group 2;" ::: "memory");
  else if (stages == 2)
    asm volatile("cp.async.wait_group 1;" ::: "memory");
  else
    asm volatile("cp.async.wait_group 0;" ::: "memory");
#endif
}

/// Threads of a block whose row it is, at most, such that VPT vectors a thread fit in its registers: the sums of
/// dweight and dbias take them.
constexpr int backward_threads(int per_thread, bool layernorm) {
  return per_thread == 1 && !layernorm ? 768 : 512;
}

/// Blocks that the registers of a multiprocessor must have room for; 0: as many as the compiler sees fit.
constexpr int backward_blocks(bool warp_row, int per_thread, bool layernorm) {
  return !warp_row && per_thread == 1 && layernorm ? 2 : 0;
}

/// A warp for short rows; otherwise a block with the fewest vectors a thread: several blocks a multiprocessor hide each
/// other's waiting better than several rows in one.
RowLayout backward_layout(int64_t vectors, bool layernorm) {
  if (vectors <= 2 * kWarp) return {true, 2, kWarp * kWarpsPerBlock};
  int per_thread = 1;
  while (per_thread < 4 && threads_for(vectors, per_thread) > backward_threads(per_thread, layernorm)) per_thread *= 2;
  const int threads = threads_for(vectors, per_thread);
  if (threads > backward_threads(per_thread, layernorm)) refuse_width("norm_backward");
  return {false, per_thread, threads};
}

/// Both sums over the threads of a row. The block form alternates between two buffers, so that one barrier a row is
/// enough: who writes a buffer again has passed the barrier of the row between.
template <bool kWarpRow>
__device__ inline float2 row_sums(float2 x, unsigned round) {
  x.x = lane_sum(x.x);
  x.y = lane_sum(x.y);
  if constexpr (kWarpRow) {
    return x;
  } else {
    __shared__ float2 parts[2][kWarp];
    float2* buffer = parts[round % 2];
    if (threadIdx.x % kWarp == 0) buffer[threadIdx.x / kWarp] = x;
    __syncthreads();
    float2 total = make_float2(0, 0);
    for (unsigned w = 0; w < blockDim.x / kWarp; ++w) total.x += buffer[w].x, total.y += buffer[w].y;
    return total;
  }
}

/// A group (a warp or a block) takes every groups-th row, keeps its sums of dweight and dbias in registers, and has the
/// next rows copied to shared memory while it works on this one; a thread reads only what it copied itself. With xhat =
/// (sum - mean) rstd and g = dout weight:
///   dx = dresidual + rstd (g - mean(g) - xhat mean(g xhat)), for RMSNorm without mean(g).
template <class T, int N, int VPT, bool kWarpRow, bool kLayernorm>
__global__ void __launch_bounds__(kWarpRow ? kWarp* kWarpsPerBlock : backward_threads(VPT, kLayernorm),
                                  backward_blocks(kWarpRow, VPT, kLayernorm)) norm_backward_kernel(NormBackward<T> p) {
  using Vector = Packed<T, N>;
  extern __shared__ uint4 shared[];  // [stages, tensors, VPT, threads] vectors
  const int lane = kWarpRow ? threadIdx.x % kWarp : threadIdx.x;
  const int lanes = kWarpRow ? kWarp : blockDim.x;
  const int64_t group = kWarpRow ? static_cast<int64_t>(blockIdx.x) * kWarpsPerBlock + threadIdx.x / kWarp : blockIdx.x;
  const int64_t groups = static_cast<int64_t>(gridDim.x) * (kWarpRow ? kWarpsPerBlock : 1);
  const int vectors = p.cols / N;
  const float inverse_cols = 1.0f / static_cast<float>(p.cols);

  const int tensor_size = VPT * blockDim.x, stage_size = p.tensors_read() * tensor_size;
  Vector* const mine = reinterpret_cast<Vector*>(shared) + threadIdx.x;
  const auto start_row = [&](int64_t row, Vector* stage) {
    if (row < p.rows) {
#pragma unroll
      for (int v = 0; v < VPT; ++v) {
        const int col = (v * lanes + lane) * N;
        if (col >= p.cols) break;
        Vector* to = stage + v * blockDim.x;
        start_copy(to, p.dout.at(row, col));
        start_copy(to + tensor_size, p.sum.at(row, col));
        if (p.dresidual.data != nullptr) start_copy(to + 2 * tensor_size, p.dresidual.at(row, col));
      }
    }
    end_batch();
  };
  for (int s = 0; s < p.stages; ++s) start_row(group + s * groups, mine + s * stage_size);

  Vector weight[VPT];
  float dweight[VPT][N] = {};
  float dbias[kLayernorm ? VPT : 1][N] = {};
#pragma unroll
  for (int v = 0; v < VPT; ++v)
    if (v * lanes + lane < vectors) weight[v] = Vector::load(p.weight + (v * lanes + lane) * N);
  float next_mean = 0, next_rstd = 0;
  const auto read_statistics = [&](int64_t row) {
    if (row >= p.rows) return;
    if (kLayernorm) next_mean = p.mean[row];
    next_rstd = p.rstd[row];
  };
  read_statistics(group);

  unsigned round = 0;
  int stage_number = 0;
  for (int64_t row = group; row < p.rows; row += groups, ++round) {
    Vector* const stage = mine + stage_number * stage_size;
    stage_number = stage_number + 1 == p.stages ? 0 : stage_number + 1;
    const float mean = next_mean, rstd = next_rstd;
    read_statistics(row + groups);
    wait_for_batch(p.stages);
    // Unpacked before and after the sums: registers are short, shared memory is near.
    const auto unpack = [&](int v, float(&dy)[N], float(&xhat)[N], float(&w)[N]) {
      stage[v * blockDim.x].unpack(dy);
      stage[v * blockDim.x + tensor_size].unpack(xhat);
      weight[v].unpack(w);
#pragma unroll
      for (int j = 0; j < N; ++j) xhat[j] = (xhat[j] - mean) * rstd;
    };
    float2 sums = make_float2(0, 0);  // of g, and of g xhat
#pragma unroll
    for (int v = 0; v < VPT; ++v) {
      if (v * lanes + lane >= vectors) break;
      float dy[N], xhat[N], w[N];
      unpack(v, dy, xhat, w);
#pragma unroll
      for (int j = 0; j < N; ++j) {
        dweight[v][j] += dy[j] * xhat[j];
        if (kLayernorm) dbias[v][j] += dy[j];
        const float g = dy[j] * w[j];
        sums.x += g;
        sums.y += g * xhat[j];
      }
    }
    sums = row_sums<kWarpRow>(sums, round);
    const float mean_g = kLayernorm ? sums.x * inverse_cols : 0.0f;
    const float mean_g_xhat = sums.y * inverse_cols;
#pragma unroll
    for (int v = 0; v < VPT; ++v) {
      const int col = (v * lanes + lane) * N;
      if (col >= p.cols) break;
      float dx[N], xhat[N], w[N];
      unpack(v, dx, xhat, w);
#pragma unroll
      for (int j = 0; j < N; ++j) dx[j] = rstd * (dx[j] * w[j] - mean_g - xhat[j] * mean_g_xhat);
      if (p.dresidual.data != nullptr) {
        float r[N];
        stage[v * blockDim.x + 2 * tensor_size].unpack(r);
#pragma unroll
        for (int j = 0; j < N; ++j) dx[j] += r[j];
      }
      store_vector<N>(p.dx.at(row, col), dx);
    }
    start_row(row + p.stages * groups, stage);
  }

  const int64_t width = p.has_bias ? 2 * static_cast<int64_t>(p.cols) : p.cols;
#pragma unroll
  for (int v = 0; v < VPT; ++v) {
    const int col = (v * lanes + lane) * N;
    if (col >= p.cols) break;
    float* partial = p.partials + group * width + col;
    store_vector<N>(partial, dweight[v]);
    if constexpr (kLayernorm) {
      if (p.has_bias) store_vector<N>(partial + p.cols, dbias[v]);
    }
  }
}

/// Groups: enough rows in flight to keep the memory busy, few enough that the partial sums are a small part of the
/// traffic, all of them at work at the same time, and all with as many rows. A multiple of the groups of a block.
template <class T, class Kernel>
int64_t group_count(const Context& ctx, const NormBackward<T>& p, Kernel kernel, const RowLayout& layout,
                    int64_t shared_bytes) {
  constexpr int64_t kBytesInFlight = 48 * 1024;  // of a multiprocessor, counting one row of each group
  const int64_t groups_per_block = layout.warp_row ? kWarpsPerBlock : 1;
  const int64_t read_bytes = int64_t{p.cols} * static_cast<int64_t>(sizeof(T)) * p.tensors_read();
  int resident = 0;
  check_cuda(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel, layout.threads,
                                                           static_cast<std::size_t>(shared_bytes)),
             "norm_backward");
  const int64_t wanted = ceil_div(kBytesInFlight, read_bytes * groups_per_block);
  const int64_t partial_bytes = int64_t{p.cols} * 4 * (p.has_bias ? 2 : 1) * groups_per_block;
  const int64_t blocks =
      std::min(std::min<int64_t>(wanted, resident) * sm_count(ctx), ctx.workspace_bytes / partial_bytes);
  const int64_t rounds = std::max<int64_t>(ceil_div(p.rows, std::max<int64_t>(blocks, 1) * groups_per_block), 1);
  return std::max<int64_t>(ceil_div(ceil_div(p.rows, rounds), groups_per_block), 1) * groups_per_block;
}

/// Allows the kernel its shared memory for as many stages as the card has room for. Returns the bytes.
template <class T, class Kernel>
int64_t choose_stages(const Context& ctx, NormBackward<T>& p, Kernel kernel, const RowLayout& layout,
                      int64_t vector_bytes) {
  constexpr int64_t kStatic = 1024;  // the kernel's other shared memory, at most
  int limit = 0;
  check_cuda(cudaDeviceGetAttribute(&limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, ctx.device.index),
             "norm_backward");
  const int64_t stage = p.tensors_read() * int64_t{layout.per_thread} * layout.threads * vector_bytes;
  p.stages = static_cast<int>(std::min<int64_t>(kMaxStages, (limit - kStatic) / stage));
  if (p.stages == 0)
    fail(ExitCode::config, "norm_backward: a row of {} elements needs {} bytes of shared memory, this card has {}",
         p.cols, stage, limit - kStatic);
  const int64_t bytes = p.stages * stage;
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
             "norm_backward");
  return bytes;
}

template <class T, int N, int VPT, bool kWarpRow, bool kLayernorm>
void launch_backward(const Context& ctx, NormBackward<T> p, const RowLayout& layout, const ColumnTargets& to) {
  const auto kernel = norm_backward_kernel<T, N, VPT, kWarpRow, kLayernorm>;
  const int64_t shared = choose_stages(ctx, p, kernel, layout, sizeof(Packed<T, N>));
  const int64_t groups = group_count(ctx, p, kernel, layout, shared);
  p.partials = static_cast<float*>(workspace(ctx, groups * (to.first_cols + to.second_cols) * 4, "norm_backward"));
  kernel<<<grid_size(groups / (kWarpRow ? kWarpsPerBlock : 1)), layout.threads, static_cast<std::size_t>(shared),
           stream_of(ctx)>>>(p);
  check_cuda(cudaGetLastError(), "norm_backward");
  add_partials(ctx, p.partials, groups, to);
}

template <class T, int N, bool kLayernorm>
void backward(const Context& ctx, const NormBackward<T>& p, const ColumnTargets& to) {
  const RowLayout layout = backward_layout(p.cols / N, kLayernorm);
  if (layout.warp_row) return launch_backward<T, N, 2, true, kLayernorm>(ctx, p, layout, to);
  switch (layout.per_thread) {
    case 1:
      return launch_backward<T, N, 1, false, kLayernorm>(ctx, p, layout, to);
    case 2:
      return launch_backward<T, N, 2, false, kLayernorm>(ctx, p, layout, to);
    default:
      return launch_backward<T, N, 4, false, kLayernorm>(ctx, p, layout, to);
  }
}

/// Parameter vectors are read in the same vectors as the rows.
template <class T>
bool vectors_fit(int64_t cols, const T* weight, const T* bias) {
  const auto aligned = [](const T* p) { return reinterpret_cast<std::uintptr_t>(p) % 16 == 0; };
  return cols % kVector<T> == 0 && aligned(weight) && aligned(bias);
}

}  // namespace

void add_norm_forward(const Context& ctx, const AddNormForwardArgs& args) {
  const int64_t tokens = args.x.rows, width = args.x.cols;
  const bool layernorm = args.kind == NormKind::layernorm;
  check_shape(args.out, "add_norm_forward: out", args.x.dtype, tokens, width);
  if (args.branch) check_shape(args.branch, "add_norm_forward: branch", args.x.dtype, tokens, width);
  TRAINER_CHECK(args.sum || !args.branch, "add_norm_forward: a branch needs a sum");
  if (args.sum) check_shape(args.sum, "add_norm_forward: sum", args.x.dtype, tokens, width);
  if (tokens == 0) return;
  visit_float(args.x.dtype, "add_norm_forward", [&](auto tag) {
    using T = typename decltype(tag)::type;
    NormForward<T> p{layernorm,
                     static_cast<float>(args.eps),
                     tokens,
                     static_cast<int>(width),
                     view_of<T>(args.x),
                     view_of<T>(args.branch),
                     view_of<T>(args.sum),
                     view_of<T>(args.out),
                     vector_of<T>(args.weight, "add_norm_forward: weight", width),
                     vector_of<T>(args.bias, "add_norm_forward: bias", width),
                     layernorm ? vector_of<float>(args.mean, "add_norm_forward: mean", tokens) : nullptr,
                     vector_of<float>(args.rstd, "add_norm_forward: rstd", tokens)};
    TRAINER_CHECK(p.weight != nullptr && p.rstd != nullptr && (p.mean != nullptr) == layernorm,
                  "add_norm_forward: weight, rstd or mean is absent");
    if (!args.branch && args.sum.data == args.x.data) p.sum = {};  // it is there already
    if (all_aligned16(args.x, args.branch, args.sum, args.out) && vectors_fit(width, p.weight, p.bias))
      forward<T, kVector<T>>(ctx, p);
    else
      forward<T, 1>(ctx, p);
  });
}

void norm_backward(const Context& ctx, const NormBackwardArgs& args) {
  const int64_t tokens = args.sum.rows, width = args.sum.cols;
  const bool layernorm = args.kind == NormKind::layernorm;
  check_shape(args.dout, "norm_backward: dout", args.sum.dtype, tokens, width);
  check_shape(args.dx, "norm_backward: dx", args.sum.dtype, tokens, width);
  if (args.dresidual) check_shape(args.dresidual, "norm_backward: dresidual", args.sum.dtype, tokens, width);
  float* dweight = vector_of<float>(args.dweight, "norm_backward: dweight", width);
  float* dbias = vector_of<float>(args.dbias, "norm_backward: dbias", width);
  TRAINER_CHECK(dweight != nullptr, "norm_backward: no dweight");
  TRAINER_CHECK(layernorm || dbias == nullptr, "norm_backward: RMSNorm with a bias has no CUDA kernel");
  const ColumnTargets to{dweight, width, dbias, dbias != nullptr ? width : 0, args.accumulate};
  visit_float(args.sum.dtype, "norm_backward", [&](auto tag) {
    using T = typename decltype(tag)::type;
    const NormBackward<T> p{tokens,
                            static_cast<int>(width),
                            view_of<T>(args.dout),
                            view_of<T>(args.sum),
                            view_of<T>(args.dresidual),
                            view_of<T>(args.dx),
                            vector_of<T>(args.weight, "norm_backward: weight", width),
                            layernorm ? vector_of<float>(args.mean, "norm_backward: mean", tokens) : nullptr,
                            vector_of<float>(args.rstd, "norm_backward: rstd", tokens),
                            nullptr,
                            dbias != nullptr,
                            1};
    TRAINER_CHECK(p.weight != nullptr && p.rstd != nullptr && (p.mean != nullptr) == layernorm,
                  "norm_backward: weight, rstd or mean is absent");
    const bool vectors =
        all_aligned16(args.dout, args.sum, args.dresidual, args.dx) && vectors_fit<T>(width, p.weight, nullptr);
    if (vectors && layernorm) return backward<T, kVector<T>, true>(ctx, p, to);
    if (vectors) return backward<T, kVector<T>, false>(ctx, p, to);
    if (layernorm) return backward<T, 1, true>(ctx, p, to);
    backward<T, 1, false>(ctx, p, to);
  });
}

}  // namespace trainer::ops::cuda
