// Sums over rows and over whole tensors. All in two stages with a fixed split, so that the bits never change.
#include <algorithm>

#include "kernels/cuda/common.cuh"

namespace trainer::ops::cuda {
namespace {

// ---- column sums --------------------------------------------------------------------------------------------------
constexpr int kColumnWarps = 8;
constexpr int kRowsAhead = 4;  // of a warp: read before the first is added

/// partials[part][c] = sum over the part's rows of dy[row][c]. A block takes 32 * N columns; its warps take rows in
/// turn.
template <class T, int N>
__global__ void __launch_bounds__(kColumnWarps* kWarp)
    column_sums_kernel(View<T> dy, int64_t rows, int64_t cols, int64_t rows_per_part, float* partials) {
  __shared__ float sums[kColumnWarps][kWarp * N];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int64_t col = (static_cast<int64_t>(blockIdx.x) * kWarp + lane) * N;
  const int64_t part = blockIdx.y;
  const int64_t end = min(rows, (part + 1) * rows_per_part);
  float total[N] = {};
  if (col < cols) {
    int64_t row = part * rows_per_part + warp;
    for (; row + (kRowsAhead - 1) * kColumnWarps < end; row += kRowsAhead * kColumnWarps) {
      Packed<T, N> ahead[kRowsAhead];
#pragma unroll
      for (int i = 0; i < kRowsAhead; ++i) ahead[i] = Packed<T, N>::load(dy.at(row + i * kColumnWarps, col));
#pragma unroll
      for (int i = 0; i < kRowsAhead; ++i) {
        float x[N];
        ahead[i].unpack(x);
#pragma unroll
        for (int j = 0; j < N; ++j) total[j] += x[j];
      }
    }
    for (; row < end; row += kColumnWarps) {
      float x[N];
      load_vector<N>(dy.at(row, col), x);
#pragma unroll
      for (int j = 0; j < N; ++j) total[j] += x[j];
    }
  }
#pragma unroll
  for (int j = 0; j < N; ++j) sums[warp][lane * N + j] = total[j];
  __syncthreads();
  const int64_t first_col = static_cast<int64_t>(blockIdx.x) * kWarp * N;
  for (int c = threadIdx.x; c < kWarp * N && first_col + c < cols; c += kColumnWarps * kWarp) {
    float sum = 0;
#pragma unroll
    for (int w = 0; w < kColumnWarps; ++w) sum += sums[w][c];
    partials[part * cols + first_col + c] = sum;
  }
}

template <class T, int N>
void column_sums(const Context& ctx, const BiasBackwardArgs& args, float* dbias) {
  const int64_t rows = args.dy.rows, cols = args.dy.cols;
  const int64_t tiles = ceil_div(cols, kWarp * N);
  const int64_t wanted = std::max<int64_t>(1, 8 * sm_count(ctx) / tiles);
  constexpr int64_t kRound = kColumnWarps * kRowsAhead;  // whole rounds: rows that are left over are read one by one
  const int64_t rows_per_part = ceil_div(ceil_div(rows, std::min<int64_t>(wanted, 65535)), kRound) * kRound;
  const int64_t parts = ceil_div(rows, rows_per_part);
  auto* partials = static_cast<float*>(workspace(ctx, parts * cols * 4, "bias_backward"));
  const dim3 grid(grid_size(tiles), grid_size(parts));
  column_sums_kernel<T, N>
      <<<grid, kColumnWarps * kWarp, 0, stream_of(ctx)>>>(view_of<T>(args.dy), rows, cols, rows_per_part, partials);
  check_cuda(cudaGetLastError(), "bias_backward");
  add_partials(ctx, partials, parts, {dbias, cols, nullptr, 0, args.accumulate});
}

constexpr int kAddThreads = 512;
constexpr int kAddColumns = 8;  // of a block: the 32 bytes that memory hands out at least

/// A block's threads take parts in turn and are added in a fixed order, in double: 4 of a warp, then the warps.
__global__ void __launch_bounds__(kAddThreads)
    add_partials_kernel(const float* partials, int64_t parts, ColumnTargets to) {
  __shared__ double sums[kAddThreads / kWarp][kAddColumns];
  const int64_t cols = to.first_cols + to.second_cols;
  const int64_t col = static_cast<int64_t>(blockIdx.x) * kAddColumns + threadIdx.x % kAddColumns;
  double sum = 0;
  if (col < cols) {
#pragma unroll 8
    for (int64_t part = threadIdx.x / kAddColumns; part < parts; part += kAddThreads / kAddColumns)
      sum += static_cast<double>(partials[part * cols + col]);
  }
  for (int offset = kAddColumns; offset < kWarp; offset *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
  if (threadIdx.x % kWarp < kAddColumns) sums[threadIdx.x / kWarp][threadIdx.x % kWarp] = sum;
  __syncthreads();
  if (threadIdx.x >= kAddColumns || col >= cols) return;
  double total = 0;
#pragma unroll
  for (int w = 0; w < kAddThreads / kWarp; ++w) total += sums[w][threadIdx.x];
  float* out = col < to.first_cols ? to.first + col : to.second + (col - to.first_cols);
  *out = static_cast<float>((to.accumulate ? static_cast<double>(*out) : 0.0) + total);
}

// ---- squared norm -------------------------------------------------------------------------------------------------
constexpr int kNormThreads = 512;
constexpr int kNormUnroll = 4;
constexpr int64_t kNormPiece = kNormThreads * kNormUnroll * 4;  // elements that a block reads at a time
constexpr int64_t kMaxNormBlocks = 1024;  // a constant, so that the split is that of the runs alone

/// Where the pieces of each run end, counted through all runs. The blocks take pieces in turn.
struct NormPieces {
  int64_t end[RunTable<NormRun>::kCapacity];
};

/// What a block found. A non-finite float32 always makes the float64 sum of squares non-finite, and nothing else does:
/// the largest square is 1e77.
struct NormPartial {
  double sum;
  unsigned long long first_bad;  // least tensor index, kNoneBad when there is none
};
constexpr unsigned long long kNoneBad = ~0ULL;

/// Sum of the squares of this thread's part of a piece of x [n].
__device__ double squares_of_piece(const float* x, int64_t n, int64_t piece) {
  double sum = 0;
  const auto add = [&sum](float value) { sum = fma(static_cast<double>(value), static_cast<double>(value), sum); };
  const int64_t head = min(static_cast<int64_t>((16 - reinterpret_cast<std::uintptr_t>(x) % 16) % 16 / 4), n);
  const float4* quads = reinterpret_cast<const float4*>(x + head);
  const int64_t count = (n - head) / 4;
  const int64_t i = piece * (kNormThreads * kNormUnroll) + threadIdx.x;
  float4 ahead[kNormUnroll];
#pragma unroll
  for (int u = 0; u < kNormUnroll; ++u)
    ahead[u] = i + u * kNormThreads < count ? quads[i + u * kNormThreads] : make_float4(0, 0, 0, 0);
#pragma unroll
  for (int u = 0; u < kNormUnroll; ++u) add(ahead[u].x), add(ahead[u].y), add(ahead[u].z), add(ahead[u].w);
  if (piece == 0) {  // the elements outside 16-byte boundaries
    const int64_t tail = head + 4 * count;
    if (threadIdx.x < head) add(x[threadIdx.x]);
    if (tail + threadIdx.x < n) add(x[tail + threadIdx.x]);
  }
  return sum;
}

/// The parts of all threads of the block, in thread 0.
__device__ NormPartial join_block(double sum, unsigned long long bad) {
  __shared__ unsigned long long first_bad;
  if (threadIdx.x == 0) first_bad = kNoneBad;
  sum = block_sum(sum);  // a barrier before and after
  if (bad != kNoneBad) atomicMin(&first_bad, bad);
  __syncthreads();
  return {sum, first_bad};
}

__global__ void __launch_bounds__(kNormThreads)
    squared_norm_kernel(const float* x, const __grid_constant__ RunTable<NormRun> runs,
                        const __grid_constant__ NormPieces pieces, NormPartial* partials) {
  double total = 0;
  unsigned long long first_bad = kNoneBad;
  int64_t piece = blockIdx.x, start = 0;
  for (int r = 0; r < runs.count; start = pieces.end[r++]) {
    if (piece >= pieces.end[r]) continue;
    const NormRun& run = runs.runs[r];
    double sum = 0;
    for (; piece < pieces.end[r]; piece += gridDim.x) sum += squares_of_piece(x + run.first, run.count, piece - start);
    if (!isfinite(sum)) first_bad = min(first_bad, static_cast<unsigned long long>(run.tensor_index));
    if (run.counted) total += sum;
  }
  const NormPartial partial = join_block(total, first_bad);
  if (threadIdx.x == 0) partials[blockIdx.x] = partial;
}

__global__ void __launch_bounds__(kMaxNormBlocks)
    finish_norm_kernel(const NormPartial* partials, int parts, double* result) {
  const bool here = static_cast<int>(threadIdx.x) < parts;
  const NormPartial mine = here ? partials[threadIdx.x] : NormPartial{0, kNoneBad};
  const NormPartial all = join_block(mine.sum, mine.first_bad);
  if (threadIdx.x != 0) return;
  result[0] += all.sum;
  if (all.first_bad != kNoneBad) result[1] = min(result[1], static_cast<double>(all.first_bad));
}

}  // namespace

void add_partials(const Context& ctx, const float* partials, int64_t parts, const ColumnTargets& to) {
  const unsigned blocks = grid_size(ceil_div(to.first_cols + to.second_cols, kAddColumns));
  add_partials_kernel<<<blocks, kAddThreads, 0, stream_of(ctx)>>>(partials, parts, to);
  check_cuda(cudaGetLastError(), "add_partials");
}

void bias_backward(const Context& ctx, const BiasBackwardArgs& args) {
  if (args.dy.cols == 0) return;
  visit_float(args.dy.dtype, "bias_backward", [&](auto tag) {
    using T = typename decltype(tag)::type;
    auto* dbias = vector_of<float>(args.dbias, "bias_backward: dbias", args.dy.cols);
    TRAINER_CHECK(dbias != nullptr, "bias_backward: no dbias");
    if (aligned16(args.dy) && args.dy.cols % kVector<T> == 0)
      column_sums<T, kVector<T>>(ctx, args, dbias);
    else
      column_sums<T, 1>(ctx, args, dbias);
  });
}

void squared_norm(const Context& ctx, const SquaredNormArgs& args) {
  if (args.x.dtype == Dtype::f64) refuse_float64("squared_norm");
  const auto* x = args.x.as<float>();
  TRAINER_CHECK(args.x.contiguous(), "squared_norm: x has gaps");
  NormPieces pieces{};
  int64_t end = 0;
  for (int r = 0; r < args.runs.count; ++r) {
    const NormRun& run = args.runs.runs[r];
    TRAINER_CHECK(run.first >= 0 && run.first + run.count <= args.x.numel(), "squared_norm: elements {}+{} of {}",
                  run.first, run.count, args.x.numel());
    end += ceil_div(run.count, kNormPiece);
    pieces.end[r] = end;
  }
  if (end == 0) return;
  const int64_t blocks = std::min(end, kMaxNormBlocks);
  const auto bytes = kMaxNormBlocks * static_cast<int64_t>(sizeof(NormPartial));
  auto* partials = static_cast<NormPartial*>(workspace(ctx, bytes, "squared_norm"));
  squared_norm_kernel<<<grid_size(blocks), kNormThreads, 0, stream_of(ctx)>>>(x, args.runs, pieces, partials);
  finish_norm_kernel<<<1, kMaxNormBlocks, 0, stream_of(ctx)>>>(partials, static_cast<int>(blocks),
                                                               args.result.as<double>());
  check_cuda(cudaGetLastError(), "squared_norm");
}

}  // namespace trainer::ops::cuda
