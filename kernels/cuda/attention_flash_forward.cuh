// Flash attention, forward (Dao 2023, FlashAttention-2): a block owns a tile of queries; keys and values pass by, and
// the softmax is rescaled when a larger score turns up.
#pragma once
#include "kernels/cuda/attention_flash_tiles.cuh"

namespace trainer::ops::cuda {

template <class M, int HeadDim>
struct FlashForwardSizes {
  using Type = FlashSizes<HeadDim, 4, 2, 64, 2>;
};
template <int HeadDim>
struct FlashForwardSizes<VoltaMma, HeadDim> {
  using Type = FlashSizes<HeadDim, 4, 1, 32, 2>;
};

/// Shared memory: the queries' tile, one of keys, one of values.
template <class S>
constexpr int64_t flash_forward_bytes() {
  return int64_t{2} * (S::kRows + 2 * S::kMoving) * S::kStride;
}

/// The softmax of the warp's rows as far as it has got, in units of log2.
template <class M, class S>
struct RunningSoftmax {
  float top[S::kRowTiles][2];    // largest score
  float total[S::kRowTiles][2];  // sum of 2^(score - top) over this thread's elements

  __device__ RunningSoftmax() {
#pragma unroll
    for (int m = 0; m < S::kRowTiles; ++m)
#pragma unroll
      for (int slot = 0; slot < 2; ++slot) {
        top[m][slot] = -INFINITY;
        total[m][slot] = 0.0F;
      }
  }

  /// scores -> 2^(scale score - top); `sum`, of the tiles before, follows a new top.
  __device__ void add(MmaTile (&scores)[S::kRowTiles][S::kMovingTiles], float scale,
                      MmaTile (&sum)[S::kRowTiles][S::kHeadTiles]) {
#pragma unroll
    for (int m = 0; m < S::kRowTiles; ++m)
#pragma unroll
      for (int slot = 0; slot < 2; ++slot) {
        float highest = -INFINITY;
#pragma unroll
        for (int n = 0; n < S::kMovingTiles; ++n)
#pragma unroll
          for (int e = 0; e < 8; ++e)
            if (slot_of(e) == slot) highest = fmaxf(highest, scores[m][n].x[e]);
        const float before = top[m][slot], now = fmaxf(before, row_max<M>(highest) * scale);
        // A row that has seen no key yet keeps -infinity, from which nothing may be subtracted.
        const float base = now == -INFINITY ? 0.0F : now;
        const float shrink = power_of_two(before - base);
        top[m][slot] = now;
        float added = 0.0F;
#pragma unroll
        for (int n = 0; n < S::kMovingTiles; ++n)
#pragma unroll
          for (int e = 0; e < 8; ++e)
            if (slot_of(e) == slot) {
              scores[m][n].x[e] = power_of_two(fmaf(scores[m][n].x[e], scale, -base));
              added += scores[m][n].x[e];
            }
        total[m][slot] = fmaf(total[m][slot], shrink, added);
#pragma unroll
        for (int d = 0; d < S::kHeadTiles; ++d)
#pragma unroll
          for (int e = 0; e < 8; ++e)
            if (slot_of(e) == slot) sum[m][d].x[e] *= shrink;
      }
  }
};

/// Sets scores that the mask hides to -infinity. The warp's queries start at i, the keys at j.
template <class M, class S>
__device__ inline void hide_scores(const FlashTask& task, int i, int j,
                                   MmaTile (&scores)[S::kRowTiles][S::kMovingTiles]) {
#pragma unroll
  for (int m = 0; m < S::kRowTiles; ++m)
#pragma unroll
    for (int n = 0; n < S::kMovingTiles; ++n)
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        const int query = i + 16 * m + M::row(slot_of(e));
        const int key = j + 16 * n + M::column() + (e & 1) + e / 4 * M::kColumnStep;
        if (!task.sees(query, key)) scores[m][n].x[e] = -INFINITY;
      }
}

/// Sets the probabilities that dropout drops to zero.
template <class M, class S, class T>
__device__ inline void drop_probabilities(const AttentionCall<T>& c, const FlashTask& task, int i, int j,
                                          MmaTile (&p)[S::kRowTiles][S::kMovingTiles]) {
  const KeptByRow<M, S> kept(c, task, i, j);
#pragma unroll
  for (int m = 0; m < S::kRowTiles; ++m)
#pragma unroll
    for (int n = 0; n < S::kMovingTiles; ++n)
#pragma unroll
      for (int e = 0; e < 8; ++e)
        if (!kept.keeps(m, n, e)) p[m][n].x[e] = 0.0F;
}

/// One tile of queries.
template <class M, class S, bool kDropout, class T>
__device__ inline void forward_tile(const AttentionCall<T>& c, const FlashTask& task, int i) {
  T* const queries = shared_memory<T>();
  T* const keys = queries + S::kRows * S::kStride;
  T* const values = keys + S::kMoving * S::kStride;
  const int warp = static_cast<int>(threadIdx.x) / kWarp, own = i + warp * S::kWarpRows;
  T* const own_queries = queries + warp * S::kWarpRows * S::kStride;
  const int rows = min(S::kRows, task.nq - i), last = i + rows + task.shift;  // keys from `last` on are not seen
  const int first = max(0, task.shift + i - task.reach + 1) / S::kMoving * S::kMoving;

  copy_tile<S, S::kRows>(queries, c.q, task.q_start + i, task.head, rows);
  copy_tile<S, S::kMoving>(keys, c.k, task.kv_start + first, task.kv_head, task.nk - first);
  MmaTile sum[S::kRowTiles][S::kHeadTiles];
#pragma unroll
  for (int m = 0; m < S::kRowTiles; ++m)
#pragma unroll
    for (int d = 0; d < S::kHeadTiles; ++d) sum[m][d].clear();
  RunningSoftmax<M, S> softmax;
  for (int j = first; j < last; j += S::kMoving) {
    const FlashTask::Cover cover = task.cover(own, S::kWarpRows, j, S::kMoving);
    MmaTile scores[S::kRowTiles][S::kMovingTiles];
    wait_for_copies();
    __syncthreads();  // the keys are there, and every warp is done with the values before
    copy_tile<S, S::kMoving>(values, c.v, task.kv_start + j, task.kv_head, task.nk - j);
    if (cover != FlashTask::Cover::none) multiply_rows<M, S>(scores, own_queries, keys);
    wait_for_copies();
    __syncthreads();  // the values are there, and every warp is done with the keys
    const int next = j + S::kMoving;
    if (next < last) copy_tile<S, S::kMoving>(keys, c.k, task.kv_start + next, task.kv_head, task.nk - next);
    if (cover == FlashTask::Cover::none) continue;
    if (cover == FlashTask::Cover::part) hide_scores<M, S>(task, own, j, scores);
    softmax.add(scores, c.scale * kLog2E, sum);
    if constexpr (kDropout) drop_probabilities<M, S>(c, task, own, j, scores);
    add_product<M, S>(sum, scores, values);
  }

  float factor[S::kRowTiles][2];
#pragma unroll
  for (int m = 0; m < S::kRowTiles; ++m)
#pragma unroll
    for (int slot = 0; slot < 2; ++slot) {
      const float total = row_sum<M>(softmax.total[m][slot]);
      const int query = own + 16 * m + M::row(slot);
      factor[m][slot] = c.kept_factor / total;
      if (first_in_row<M>() && query < task.nq)
        c.lse[c.lse_index(task.q_start, task.head, query, task.nq)] = softmax.top[m][slot] / kLog2E + logf(total);
    }
  store_rows<M, S>(sum, factor, own_queries, c.out, task.q_start + own, task.head, task.nq - own);
}

/// Grid: FlashGrid; of a sequence and head, the blocks with the most keys first.
template <class M, class S, bool kDropout>
__global__ void __launch_bounds__(S::kThreads, S::kBlocksPerSm)
    flash_forward_kernel(const AttentionCall<typename M::Element> c, const int tiles) {
  if constexpr (M::kCompiled) {
    const FlashShare share = flash_share<S>(c.q_starts, c.q_rows, c.sequences, c.heads, tiles);
    const FlashTask task(c, share.pair, c.heads);
    const int all = (task.nq + S::kRows - 1) / S::kRows;
    for (int tile = all - 1 - share.index; tile >= 0; tile -= share.blocks) {
      forward_tile<M, S, kDropout>(c, task, tile * S::kRows);
      __syncthreads();
    }
  }
}

template <class M, int HeadDim>
void flash_forward(const Context& ctx, const AttentionForwardArgs& args) {
  using S = typename FlashForwardSizes<M, HeadDim>::Type;
  const auto call = common_call<typename M::Element>(args);
  const auto kernel = call.drop_below > 0 ? flash_forward_kernel<M, S, true> : flash_forward_kernel<M, S, false>;
  const unsigned shared = allow_shared(ctx, kernel, flash_forward_bytes<S>(), "attention_forward");
  const FlashGrid grid = flash_grid<S>(call.q_rows, args.shape.max_seq, call.sequences, call.heads);
  kernel<<<grid.blocks, S::kThreads, shared, stream_of(ctx)>>>(call, grid.tiles);
  check_cuda(cudaGetLastError(), "attention_forward");
}

}  // namespace trainer::ops::cuda
