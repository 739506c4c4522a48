// Flash attention, backward, without atomic sums: one kernel owns tiles of queries and gives dq, another owns tiles of
// keys and gives dk and dv. Both compute the probabilities again from lse, so there are seven products where a kernel
// that adds dq atomically has five; in return the order of every sum is fixed.
//
//   P = 2^(scale log2(e) q k^T - lse),  dP = dout v^T,  delta = rowsum(dout out),  dS = P (dP - delta),
//   dq = scale dS k,  dk = scale dS^T q,  dv = P^T dout; with dropout factors M: dP M for dP, (P M)^T dout.
#pragma once
#include "kernels/cuda/attention_flash_tiles.cuh"

namespace trainer::ops::cuda {

template <class M, int HeadDim>
struct FlashBackwardSizes {
  using Queries = FlashSizes<HeadDim, 4, 2, 32, 2>;
  using Keys = FlashSizes<HeadDim, 4, 1, 64, 2>;
};
template <class T>
struct FlashBackwardSizes<AmpereMma<T>, 64> {
  using Queries = FlashSizes<64, 4, 2, 64, 2>;
  using Keys = FlashSizes<64, 4, 1, 64, 3>;
};
template <int HeadDim>
struct FlashBackwardSizes<VoltaMma, HeadDim> {
  using Queries = FlashSizes<HeadDim, 4, 1, 16, 1>;
  using Keys = FlashSizes<HeadDim, 4, 1, 16, 1>;
};

/// Shared memory: two tiles that stay, and twice two that pass by, so that the next ones arrive during the work.
template <class S>
constexpr int64_t flash_backward_bytes() {
  return int64_t{2} * (2 * S::kRows + 4 * S::kMoving) * S::kStride;
}

/// delta[lse index] = sum over the head of dout x out. Sixteen threads a query and head.
constexpr int kDeltaLanes = 16, kDeltaThreads = 256;
template <class T>
__global__ void __launch_bounds__(kDeltaThreads) flash_delta_kernel(const AttentionCall<T> c, float* delta) {
  const int64_t task = (int64_t{blockIdx.x} * kDeltaThreads + threadIdx.x) / kDeltaLanes;
  const int64_t row = task / c.heads, h = task % c.heads, d = int64_t{threadIdx.x % kDeltaLanes} * 8;
  const bool works = row < c.q_rows && d < c.head_dim;
  float sum = 0.0F;
  if (works) {
    float dout[8], out[8];
    load_vector<8>(c.dout.at(row, h * c.head_dim + d), dout);
    load_vector<8>(c.out.at(row, h * c.head_dim + d), out);
#pragma unroll
    for (int i = 0; i < 8; ++i) sum = fmaf(dout[i], out[i], sum);
  }
  sum = lane_sum(sum, kDeltaLanes);
  if (!works || d != 0) return;
  const int64_t s = sequence_of(c.q_starts, c.sequences, row), start = c.q_starts[s];
  delta[c.lse_index(start, h, row - start, c.q_starts[s + 1] - start)] = sum;
}

/// What turns the score of a query and key, and the gradient of its probability, into P and dS.
struct PairTerms {
  float lse, delta;  // lse in units of log2
  bool seen, kept;   // by the mask, by dropout
};
/// score -> P, or with dropout P M without the 1 / (1 - p) of M; gradient -> dS. factor = 1 / (1 - p).
__device__ inline void finish_element(float& score, float& gradient, const PairTerms& t, float scale, float factor) {
  const float p = t.seen ? power_of_two(fmaf(score, scale, -t.lse)) : 0.0F;
  score = t.kept ? p : 0.0F;
  gradient = p * ((t.kept ? gradient * factor : 0.0F) - t.delta);
}

template <class S>
__device__ inline void clear_tiles(MmaTile (&sum)[S::kRowTiles][S::kHeadTiles]) {
#pragma unroll
  for (int m = 0; m < S::kRowTiles; ++m)
#pragma unroll
    for (int d = 0; d < S::kHeadTiles; ++d) sum[m][d].clear();
}

template <class S>
__device__ inline void same_factor(float (&factor)[S::kRowTiles][2], float value) {
#pragma unroll
  for (int m = 0; m < S::kRowTiles; ++m) factor[m][0] = factor[m][1] = value;
}

/// Of the warp's queries: lse in units of log2, and delta; 0 for queries that do not exist.
template <class M, class S>
struct QueryTerms {
  float lse[S::kRowTiles][2], delta[S::kRowTiles][2];

  template <class T>
  __device__ QueryTerms(const AttentionCall<T>& c, const FlashTask& task, const float* deltas, int own) {
#pragma unroll
    for (int m = 0; m < S::kRowTiles; ++m)
#pragma unroll
      for (int slot = 0; slot < 2; ++slot) {
        const int query = own + 16 * m + M::row(slot);
        const int64_t at = c.lse_index(task.q_start, task.head, query, task.nq);
        lse[m][slot] = query < task.nq ? c.lse[at] * kLog2E : 0.0F;
        delta[m][slot] = query < task.nq ? deltas[at] : 0.0F;
      }
  }
};

/// For a kernel without dropout.
struct EverythingKept {
  __device__ bool keeps(int, int, int) const { return true; }
};

/// Rows are queries, columns keys: scores -> anything, gradients -> dS.
template <class M, class S, class Kept>
__device__ inline void finish_by_query(const FlashTask& task, int i, int j, bool whole, const QueryTerms<M, S>& terms,
                                       const Kept& kept, float scale, float factor,
                                       MmaTile (&scores)[S::kRowTiles][S::kMovingTiles],
                                       MmaTile (&gradients)[S::kRowTiles][S::kMovingTiles]) {
#pragma unroll
  for (int m = 0; m < S::kRowTiles; ++m)
#pragma unroll
    for (int n = 0; n < S::kMovingTiles; ++n)
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        const int slot = slot_of(e), query = i + 16 * m + M::row(slot);
        const int key = j + 16 * n + M::column() + (e & 1) + e / 4 * M::kColumnStep;
        finish_element(scores[m][n].x[e], gradients[m][n].x[e],
                       {terms.lse[m][slot], terms.delta[m][slot], whole || task.sees(query, key), kept.keeps(m, n, e)},
                       scale, factor);
      }
}

/// One tile of queries: dq.
template <class M, class S, bool kDropout, class T>
__device__ inline void backward_query_tile(const AttentionCall<T>& c, const FlashTask& task, const float* deltas,
                                           int i) {
  constexpr int kTile = S::kMoving * S::kStride;
  T* const queries = shared_memory<T>();
  T* const douts = queries + S::kRows * S::kStride;
  T* const keys = douts + S::kRows * S::kStride;  // two tiles
  T* const values = keys + 2 * kTile;             // two tiles
  const int warp = static_cast<int>(threadIdx.x) / kWarp, own = i + warp * S::kWarpRows;
  const int offset = warp * S::kWarpRows * S::kStride;
  const int rows = min(S::kRows, task.nq - i), last = i + rows + task.shift;
  const int first = max(0, task.shift + i - task.reach + 1) / S::kMoving * S::kMoving;
  const auto copy_keys = [&](int j, int stage) {
    copy_tile<S, S::kMoving>(keys + stage * kTile, c.k, task.kv_start + j, task.kv_head, task.nk - j);
    copy_tile<S, S::kMoving>(values + stage * kTile, c.v, task.kv_start + j, task.kv_head, task.nk - j);
  };

  copy_tile<S, S::kRows>(queries, c.q, task.q_start + i, task.head, rows);
  copy_tile<S, S::kRows>(douts, c.dout, task.q_start + i, task.head, rows);
  copy_keys(first, 0);
  const QueryTerms<M, S> terms(c, task, deltas, own);
  MmaTile dq[S::kRowTiles][S::kHeadTiles];
  clear_tiles<S>(dq);
  int stage = 0;
  for (int j = first; j < last; j += S::kMoving, stage ^= 1) {
    wait_for_copies();
    __syncthreads();  // this tile is there, and every warp is done with the one before
    if (j + S::kMoving < last) copy_keys(j + S::kMoving, stage ^ 1);
    const FlashTask::Cover cover = task.cover(own, S::kWarpRows, j, S::kMoving);
    if (cover == FlashTask::Cover::none) continue;
    MmaTile scores[S::kRowTiles][S::kMovingTiles], gradients[S::kRowTiles][S::kMovingTiles];
    multiply_rows<M, S>(scores, queries + offset, keys + stage * kTile);
    multiply_rows<M, S>(gradients, douts + offset, values + stage * kTile);
    const auto finish = [&](const auto& kept) {
      if (cover == FlashTask::Cover::whole)
        finish_by_query<M, S>(task, own, j, true, terms, kept, c.scale * kLog2E, c.kept_factor, scores, gradients);
      else
        finish_by_query<M, S>(task, own, j, false, terms, kept, c.scale * kLog2E, c.kept_factor, scores, gradients);
    };
    if constexpr (kDropout)
      finish(KeptByRow<M, S>(c, task, own, j));
    else
      finish(EverythingKept{});
    add_product<M, S>(dq, gradients, keys + stage * kTile);
  }
  float factor[S::kRowTiles][2];
  same_factor<S>(factor, c.scale);
  store_rows<M, S>(dq, factor, queries + offset, c.dq, task.q_start + own, task.head, task.nq - own);
}

/// As KeptByRow for rows that are keys from j on and columns that are queries from i on: a lane draws for whole
/// columns.
template <class M, class S>
struct KeptByColumn {
  const uint32_t* columns;  // bit r: row r of the warp

  template <class T>
  __device__ KeptByColumn(const AttentionCall<T>& c, const FlashTask& task, int64_t head, int j, int i) {
    static_assert(S::kWarpRows <= 32, "a word a column");
    __shared__ uint32_t memory[S::kWarps][S::kMoving];
    uint32_t* const mine = memory[threadIdx.x / kWarp];
    const uint64_t first = c.first_draw(task.sequence, head, task.nq, task.nk);
    __syncwarp();  // every lane has read the columns of the tile before
    for (int x = lane_index(); x < S::kMoving; x += kWarp)
      mine[x] =
          static_cast<uint32_t>(draw_run<S::kWarpRows>(c, first + static_cast<uint64_t>(int64_t{i + x} * task.nk + j)));
    __syncwarp();
    columns = mine + M::column();
  }
  __device__ bool keeps(int m, int n, int e) const {
    const uint32_t column = columns[16 * n + (e & 1) + e / 4 * M::kColumnStep];
    return (column >> (16 * m + M::row(slot_of(e))) & 1) != 0;
  }
};

/// Rows are keys, columns queries: scores -> P M without 1 / (1 - p), gradients -> dS. terms[0 .. kMoving) holds lse of
/// the queries in units of log2, the second half delta.
template <class M, class S, class Kept>
__device__ inline void finish_by_key(const FlashTask& task, int j, int i, bool whole, const float* terms,
                                     const Kept& kept, float scale, float factor,
                                     MmaTile (&scores)[S::kRowTiles][S::kMovingTiles],
                                     MmaTile (&gradients)[S::kRowTiles][S::kMovingTiles]) {
#pragma unroll
  for (int n = 0; n < S::kMovingTiles; ++n)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int column = 16 * n + M::column() + half * M::kColumnStep;
      const float2 lse = *reinterpret_cast<const float2*>(terms + column);
      const float2 delta = *reinterpret_cast<const float2*>(terms + S::kMoving + column);
#pragma unroll
      for (int m = 0; m < S::kRowTiles; ++m)
#pragma unroll
        for (int e = 4 * half; e < 4 * half + 4; ++e) {
          const int query = i + column + (e & 1), key = j + 16 * m + M::row(slot_of(e));
          finish_element(scores[m][n].x[e], gradients[m][n].x[e],
                         {(e & 1) == 0 ? lse.x : lse.y, (e & 1) == 0 ? delta.x : delta.y,
                          whole || task.sees(query, key), kept.keeps(m, n, e)},
                         scale, factor);
        }
    }
}

/// One tile of keys: dk and dv, summed over the query heads of the group.
template <class M, class S, bool kDropout, class T>
__device__ inline void backward_key_tile(const AttentionCall<T>& c, const FlashTask& task, const float* deltas, int j) {
  __shared__ alignas(8) float terms[2][2 * S::kMoving];
  constexpr int kTile = S::kMoving * S::kStride;
  T* const keys = shared_memory<T>();
  T* const values = keys + S::kRows * S::kStride;
  T* const queries = values + S::kRows * S::kStride;  // two tiles
  T* const douts = queries + 2 * kTile;               // two tiles
  const int warp = static_cast<int>(threadIdx.x) / kWarp, own = j + warp * S::kWarpRows;
  const int offset = warp * S::kWarpRows * S::kStride;
  const int rows = min(S::kRows, task.nk - j);
  // Queries that see any of these keys.
  const int first = max(0, j - task.shift) / S::kMoving * S::kMoving;
  const int64_t beyond = int64_t{j} + rows - 1 - task.shift + task.reach;
  const int last = static_cast<int>(beyond < task.nq ? max(beyond, int64_t{0}) : int64_t{task.nq});
  const int steps = last > first ? (last - first + S::kMoving - 1) / S::kMoving : 0;  // a head
  const int group = static_cast<int>(c.heads / c.kv_heads);
  const auto copy_queries = [&](int step, int stage) {
    const int64_t head = task.head + step / steps;
    const int i = first + step % steps * S::kMoving;
    copy_tile<S, S::kMoving>(queries + stage * kTile, c.q, task.q_start + i, head, task.nq - i);
    copy_tile<S, S::kMoving>(douts + stage * kTile, c.dout, task.q_start + i, head, task.nq - i);
    for (int x = static_cast<int>(threadIdx.x); x < S::kMoving; x += S::kThreads) {
      const int64_t at = c.lse_index(task.q_start, head, i + x, task.nq);
      terms[stage][x] = i + x < task.nq ? c.lse[at] * kLog2E : 0.0F;
      terms[stage][S::kMoving + x] = i + x < task.nq ? deltas[at] : 0.0F;
    }
  };

  copy_tile<S, S::kRows>(keys, c.k, task.kv_start + j, task.kv_head, rows);
  copy_tile<S, S::kRows>(values, c.v, task.kv_start + j, task.kv_head, rows);
  if (steps > 0) copy_queries(0, 0);
  MmaTile dk[S::kRowTiles][S::kHeadTiles], dv[S::kRowTiles][S::kHeadTiles];
  clear_tiles<S>(dk);
  clear_tiles<S>(dv);
  for (int step = 0; step < steps * group; ++step) {
    const int stage = step & 1;
    wait_for_copies();
    __syncthreads();  // this tile is there, and every warp is done with the one before
    if (step + 1 < steps * group) copy_queries(step + 1, stage ^ 1);
    const int i = first + step % steps * S::kMoving;
    const int64_t head = task.head + step / steps;
    const FlashTask::Cover cover = task.cover(i, S::kMoving, own, S::kWarpRows);
    if (cover == FlashTask::Cover::none) continue;
    MmaTile scores[S::kRowTiles][S::kMovingTiles], gradients[S::kRowTiles][S::kMovingTiles];
    multiply_rows<M, S>(scores, keys + offset, queries + stage * kTile);
    multiply_rows<M, S>(gradients, values + offset, douts + stage * kTile);
    const auto finish = [&](const auto& kept) {
      if (cover == FlashTask::Cover::whole)
        finish_by_key<M, S>(task, own, i, true, terms[stage], kept, c.scale * kLog2E, c.kept_factor, scores, gradients);
      else
        finish_by_key<M, S>(task, own, i, false, terms[stage], kept, c.scale * kLog2E, c.kept_factor, scores,
                            gradients);
    };
    if constexpr (kDropout)
      finish(KeptByColumn<M, S>(c, task, head, own, i));
    else
      finish(EverythingKept{});
    add_product<M, S>(dv, scores, douts + stage * kTile);
    add_product<M, S>(dk, gradients, queries + stage * kTile);
  }
  wait_for_copies();  // without any query nobody has waited for the keys
  __syncthreads();
  float factor[S::kRowTiles][2];
  same_factor<S>(factor, c.scale);
  store_rows<M, S>(dk, factor, keys + offset, c.dk, task.kv_start + own, task.kv_head, task.nk - own);
  same_factor<S>(factor, c.kept_factor);
  store_rows<M, S>(dv, factor, values + offset, c.dv, task.kv_start + own, task.kv_head, task.nk - own);
}

/// Grid: FlashGrid; of a sequence and head, the blocks with the most keys first.
template <class M, class S, bool kDropout>
__global__ void __launch_bounds__(S::kThreads, S::kBlocksPerSm)
    flash_backward_query_kernel(const AttentionCall<typename M::Element> c, const float* deltas, const int tiles) {
  if constexpr (M::kCompiled) {
    const FlashShare share = flash_share<S>(c.q_starts, c.q_rows, c.sequences, c.heads, tiles);
    const FlashTask task(c, share.pair, c.heads);
    const int all = (task.nq + S::kRows - 1) / S::kRows;
    for (int tile = all - 1 - share.index; tile >= 0; tile -= share.blocks) {
      backward_query_tile<M, S, kDropout>(c, task, deltas, tile * S::kRows);
      __syncthreads();
    }
  }
}

/// Grid: FlashGrid; of a sequence and key/value head, the blocks with the most queries first.
template <class M, class S, bool kDropout>
__global__ void __launch_bounds__(S::kThreads, S::kBlocksPerSm)
    flash_backward_key_kernel(const AttentionCall<typename M::Element> c, const float* deltas, const int tiles) {
  if constexpr (M::kCompiled) {
    const FlashShare share = flash_share<S>(c.kv_starts, c.kv_rows, c.sequences, c.kv_heads, tiles);
    const FlashTask task(c, share.pair, c.kv_heads);
    const int all = (task.nk + S::kRows - 1) / S::kRows;
    for (int tile = share.index; tile < all; tile += share.blocks) {
      backward_key_tile<M, S, kDropout>(c, task, deltas, tile * S::kRows);
      __syncthreads();
    }
  }
}

template <class M, int HeadDim>
void flash_backward(const Context& ctx, const AttentionBackwardArgs& args) {
  constexpr const char* kOp = "attention_backward";
  using T = typename M::Element;
  using Queries = typename FlashBackwardSizes<M, HeadDim>::Queries;
  using Keys = typename FlashBackwardSizes<M, HeadDim>::Keys;
  const AttentionCall<T> call = backward_call<T>(args);
  const cudaStream_t stream = stream_of(ctx);
  const int64_t rows = call.q_rows * call.heads;
  auto* deltas = static_cast<float*>(workspace(ctx, rows * int64_t{sizeof(float)}, kOp));
  flash_delta_kernel<T>
      <<<grid_size(ceil_div(rows * kDeltaLanes, kDeltaThreads)), kDeltaThreads, 0, stream>>>(call, deltas);
  check_cuda(cudaGetLastError(), kOp);

  const bool dropout = call.drop_below > 0;
  const auto query_kernel =
      dropout ? flash_backward_query_kernel<M, Queries, true> : flash_backward_query_kernel<M, Queries, false>;
  const FlashGrid queries = flash_grid<Queries>(call.q_rows, args.shape.max_seq, call.sequences, call.heads);
  query_kernel<<<queries.blocks, Queries::kThreads,
                 allow_shared(ctx, query_kernel, flash_backward_bytes<Queries>(), kOp), stream>>>(call, deltas,
                                                                                                  queries.tiles);
  check_cuda(cudaGetLastError(), kOp);

  const auto key_kernel =
      dropout ? flash_backward_key_kernel<M, Keys, true> : flash_backward_key_kernel<M, Keys, false>;
  // No sequence has fewer keys than queries, so this is the most keys that one can have.
  const int64_t most_keys = call.kv_rows - call.q_rows + args.shape.max_seq;
  const FlashGrid keys = flash_grid<Keys>(call.kv_rows, most_keys, call.sequences, call.kv_heads);
  key_kernel<<<keys.blocks, Keys::kThreads, allow_shared(ctx, key_kernel, flash_backward_bytes<Keys>(), kOp), stream>>>(
      call, deltas, keys.tiles);
  check_cuda(cudaGetLastError(), kOp);
}

}  // namespace trainer::ops::cuda
