// What the three flash attention kernels share: sizes, the part of a sequence that a block works on, which pairs of
// query and key see each other, and the two kinds of products.
//
// Each block owns a tile of rows (queries, or keys in the kernel for dk and dv), a warp kRowTiles x 16 of them; the
// other side moves past it in tiles of kMoving rows. Scores never leave the registers.
#pragma once
#include <climits>

#include "kernels/cuda/attention_call.cuh"
#include "kernels/cuda/attention_flash_mma.cuh"

namespace trainer::ops::cuda {

template <int HeadDim, int Warps, int RowTiles, int Moving, int BlocksPerSm>
struct FlashSizes {
  static constexpr int kHeadDim = HeadDim;
  static constexpr int kWarps = Warps, kThreads = Warps * kWarp;
  static constexpr int kRowTiles = RowTiles, kWarpRows = RowTiles * 16, kRows = Warps * kWarpRows;
  static constexpr int kMoving = Moving, kMovingTiles = Moving / 16;
  static constexpr int kHeadTiles = HeadDim / 16;
  static constexpr int kBlocksPerSm = BlocksPerSm;
  /// Of a row in shared memory, in elements: 16 bytes more than the row, so that eight rows lie in different banks.
  static constexpr int kStride = HeadDim + 8;
  static_assert(HeadDim % 16 == 0 && Moving % 16 == 0, "whole tiles");
};

constexpr float kLog2E = 1.4426950408889634F;

/// Sequence and heads of a block.
struct FlashTask {
  int64_t sequence, head, kv_head;
  int64_t q_start, kv_start;  // rows
  int nq, nk;
  int shift;  // nk - nq: query i sees key i + shift and those before it
  int reach;  // how many keys a query sees at most

  /// `pair` counts sequences, and within one `heads` heads that each stand for `group` query heads.
  template <class T>
  __device__ FlashTask(const AttentionCall<T>& c, int64_t pair, int64_t heads) {
    sequence = pair / heads;
    const int64_t group = c.heads / c.kv_heads;
    head = heads == c.heads ? pair % heads : pair % heads * group;
    kv_head = head / group;
    q_start = c.q_starts[sequence];
    kv_start = c.kv_starts[sequence];
    nq = static_cast<int>(c.q_starts[sequence + 1] - q_start);
    nk = static_cast<int>(c.kv_starts[sequence + 1] - kv_start);
    shift = nk - nq;
    reach = c.window > 0 && c.window < INT_MAX ? static_cast<int>(c.window) : INT_MAX;
  }

  __device__ bool sees(int query, int key) const {
    return static_cast<unsigned>(query + shift - key) < static_cast<unsigned>(reach) && query < nq;
  }
  /// How much queries [i, i + queries) see of keys [j, j + keys).
  enum class Cover { none, part, whole };
  __device__ Cover cover(int i, int queries, int j, int keys) const {
    const int nearest = i + shift - (j + keys - 1), farthest = i + queries - 1 + shift - j;
    if (farthest < 0 || nearest >= reach || i >= nq) return Cover::none;
    return nearest >= 0 && farthest < reach && i + queries <= nq ? Cover::whole : Cover::part;
  }
};

/// Blocks of a kernel. Where sequences are about as long as one another, each has `tiles` for each head. Where many are
/// short and few are long (documents), most of those would have nothing to do; `tiles` is 0 then, and a sequence has
/// for each head one more block than tiles of all rows end in it: as many as it needs, or one more.
struct FlashGrid {
  unsigned blocks;
  int tiles;
};
/// For sequences of `rows` rows together, the longest of `longest`.
template <class S>
FlashGrid flash_grid(int64_t rows, int64_t longest, int64_t sequences, int64_t heads) {
  const int64_t tiles = ceil_div(longest, S::kRows), by_length = rows / S::kRows + sequences;
  const bool alike = tiles * sequences <= by_length;
  return {grid_size((alike ? tiles * sequences : by_length) * heads), alike ? static_cast<int>(tiles) : 0};
}

/// What a block of such a grid works on: of the `blocks` that share a sequence and head, it is number `index`.
struct FlashShare {
  int64_t pair;  // as FlashTask counts them
  int index, blocks;
};
template <class S>
__device__ inline FlashShare flash_share(const int* starts, int64_t rows, int64_t sequences, int64_t heads, int tiles) {
  if (tiles > 0) return {blockIdx.x / tiles, static_cast<int>(blockIdx.x) % tiles, tiles};
  const int64_t by_length = rows / S::kRows + sequences;
  const int64_t head = blockIdx.x / by_length, block = blockIdx.x % by_length;
  const auto first_block = [starts](int64_t s) { return starts[s] / S::kRows + s; };
  const int64_t s = last_sequence(sequences, block, first_block);
  return {s * heads + head, static_cast<int>(block - first_block(s)),
          static_cast<int>(first_block(s + 1) - first_block(s))};
}

/// Dynamic shared memory of a block.
template <class T>
__device__ inline T* shared_memory() {
  extern __shared__ uint4 memory[];
  return reinterpret_cast<T*>(memory);
}

/// Starts to copy kRows rows of one head, from `row` on, into a tile; rows from `valid` on become zero.
template <class S, int kRows, class T>
__device__ inline void copy_tile(T* tile, View<T> from, int64_t row, int64_t head, int valid) {
  constexpr int kChunks = S::kHeadDim / 8;
  const T* first = from.at(row, head * S::kHeadDim);
  for (int i = static_cast<int>(threadIdx.x); i < kRows * kChunks; i += S::kThreads) {
    const int r = i / kChunks, d = i % kChunks * 8;
    copy16_async(tile + r * S::kStride + d, first + (r < valid ? r * from.stride : 0) + d, r < valid);
  }
}

/// c = own moving^T over the head: [kWarpRows, kMoving].
template <class M, class S, class T>
__device__ inline void multiply_rows(MmaTile (&c)[S::kRowTiles][S::kMovingTiles], const T* own, const T* moving) {
#pragma unroll
  for (int m = 0; m < S::kRowTiles; ++m)
#pragma unroll
    for (int n = 0; n < S::kMovingTiles; ++n) c[m][n].clear();
#pragma unroll
  for (int k = 0; k < S::kHeadDim; k += 16) {
    typename M::A a[S::kRowTiles];
#pragma unroll
    for (int m = 0; m < S::kRowTiles; ++m) a[m] = M::load_a(own + 16 * m * S::kStride + k, S::kStride);
#pragma unroll
    for (int n = 0; n < S::kMovingTiles; ++n) {
      const typename M::B b = M::load_b(moving + 16 * n * S::kStride + k, S::kStride);
#pragma unroll
      for (int m = 0; m < S::kRowTiles; ++m) M::multiply(c[m][n], a[m], b);
    }
  }
}

/// sum += weights moving: [kWarpRows, kHeadDim].
template <class M, class S, class T>
__device__ inline void add_product(MmaTile (&sum)[S::kRowTiles][S::kHeadTiles],
                                   const MmaTile (&weights)[S::kRowTiles][S::kMovingTiles], const T* moving) {
#pragma unroll
  for (int n = 0; n < S::kMovingTiles; ++n) {
    typename M::A a[S::kRowTiles];
#pragma unroll
    for (int m = 0; m < S::kRowTiles; ++m) a[m] = M::to_a(weights[m][n]);
#pragma unroll
    for (int d = 0; d < S::kHeadTiles; ++d) {
      const typename M::TransposedB b = M::load_b_transposed(moving + 16 * n * S::kStride + 16 * d, S::kStride);
#pragma unroll
      for (int m = 0; m < S::kRowTiles; ++m) M::multiply(sum[m][d], a[m], b);
    }
  }
}

/// Rounds factor x sum into rows of `to`; `valid` of the warp's rows exist. `own` is the warp's part of a tile in
/// shared memory that no other warp reads.
template <class M, class S, class T>
__device__ inline void store_rows(const MmaTile (&sum)[S::kRowTiles][S::kHeadTiles],
                                  const float (&factor)[S::kRowTiles][2], T* own, View<T> to, int64_t row, int64_t head,
                                  int valid) {
  __syncwarp();
#pragma unroll
  for (int m = 0; m < S::kRowTiles; ++m)
#pragma unroll
    for (int d = 0; d < S::kHeadTiles; ++d)
#pragma unroll
      for (int e = 0; e < 8; e += 2) {
        const float by = factor[m][slot_of(e)];
        T* pair = own + (16 * m + M::row(slot_of(e))) * S::kStride + 16 * d + M::column() + e / 4 * M::kColumnStep;
        *reinterpret_cast<uint32_t*>(pair) = pack_word(sum[m][d].x[e] * by, sum[m][d].x[e + 1] * by, TypeTag<T>{});
      }
  __syncwarp();
  constexpr int kChunks = S::kHeadDim / 8;
  for (int i = lane_index(); i < S::kWarpRows * kChunks; i += kWarp) {
    const int r = i / kChunks, d = i % kChunks * 8;
    if (r < valid)
      *reinterpret_cast<uint4*>(to.at(row + r, head * S::kHeadDim + d)) =
          *reinterpret_cast<const uint4*>(own + r * S::kStride + d);
  }
}

/// Bit x: whether dropout keeps element first + x of the stream, for x < kCount <= 64. Four elements share a block of
/// the stream, so that a run costs a quarter of its elements drawn one by one.
template <int kCount, class T>
__device__ inline uint64_t draw_run(const AttentionCall<T>& c, uint64_t first) {
  const int before = static_cast<int>(first & 3);  // elements of the first block that lie before the run
  uint64_t kept = 0;
#pragma unroll 2
  for (int at = -before; at < kCount; at += 4) {
    const Philox4 block = philox(c.dropout_key, (first + before + at) >> 2);
    uint64_t four = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) four |= static_cast<uint64_t>(c.keeps(block.v[i])) << i;
    kept |= at < 0 ? four >> -at : four << at;
  }
  return kept;
}

/// What dropout keeps of the scores of a warp's rows and the moving tile. A lane draws for whole rows; the lanes that
/// hold their elements read it from shared memory.
template <class M, class S>
struct KeptByRow {
  uint64_t bits[S::kRowTiles][2];

  /// Rows are queries from i on, columns keys from j on.
  template <class T>
  __device__ KeptByRow(const AttentionCall<T>& c, const FlashTask& task, int i, int j) {
    __shared__ uint64_t memory[S::kWarps][S::kWarpRows];
    uint64_t* const rows = memory[threadIdx.x / kWarp];
    const uint64_t first = c.first_draw(task.sequence, task.head, task.nq, task.nk);
    __syncwarp();  // every lane has read the rows of the tile before
    for (int r = lane_index(); r < S::kWarpRows; r += kWarp)
      rows[r] = draw_run<S::kMoving>(c, first + static_cast<uint64_t>(int64_t{i + r} * task.nk + j));
    __syncwarp();
#pragma unroll
    for (int m = 0; m < S::kRowTiles; ++m)
#pragma unroll
      for (int slot = 0; slot < 2; ++slot) bits[m][slot] = rows[16 * m + M::row(slot)] >> M::column();
  }
  __device__ bool keeps(int m, int n, int e) const {
    return (bits[m][slot_of(e)] >> (16 * n + (e & 1) + e / 4 * M::kColumnStep) & 1) != 0;
  }
};

/// Allows the kernel `bytes` of shared memory, and returns them as a launch wants them. Fails where the card has less:
/// sm_86 and sm_89 have 99 KB a block, the backward kernels for heads of 128 need 102.
template <class Kernel>
unsigned allow_shared(const Context& ctx, Kernel* kernel, int64_t bytes, const char* op) {
  int limit = 0;
  check_cuda(cudaDeviceGetAttribute(&limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, ctx.device.index), op);
  if (bytes > limit)
    fail(ExitCode::config,
         "{}: the built-in flash attention needs {} bytes of shared memory, this card has {}; right would be "
         "train.attention: cudnn, without data.intra_document_attention",
         op, bytes, limit);
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)), op);
  return static_cast<unsigned>(bytes);
}

}  // namespace trainer::ops::cuda
