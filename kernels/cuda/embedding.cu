// Table look-up and its gradient.
#include "core/runtime/device.h"
#include "kernels/cuda/elementwise.cuh"

namespace trainer::ops::cuda {
namespace {

template <class T>
struct Lookup {
  View<T> weight, out;
  const int32_t* ids;
  int64_t first_row, table_rows;
  bool accumulate;

  template <int N>
  struct Loaded {
    Packed<T, N> weight;
    bool here;
  };
  template <int N>
  __device__ Loaded<N> load(int64_t row, int64_t col) const {
    const int64_t from = ids[row] - first_row;
    const bool here = from >= 0 && from < table_rows;
    return {Packed<T, N>::load(weight.at(here ? from : 0, col)), here};
  }
  template <int N>
  __device__ void store(int64_t row, int64_t col, const Loaded<N>& loaded) const {
    if (loaded.here && !accumulate) return loaded.weight.store(out.at(row, col));
    if (!loaded.here && accumulate) return;
    float x[N] = {};
    if (loaded.here) {
      float before[N];
      loaded.weight.unpack(x);
      load_vector<N>(out.at(row, col), before);
#pragma unroll
      for (int i = 0; i < N; ++i) x[i] += before[i];
    }
    store_vector<N>(out.at(row, col), x);
  }
};

// ---- gradient -----------------------------------------------------------------------------------------------------
// Tokens are listed by table row (a counting sort), each list is put in the order of the tokens, and a block adds the
// tokens of a list. A row of more than `segment` tokens (a frequent word) is "heavy": it is cut into segments whose
// sums go to `partials` and are added in order. Where in memory a list lies depends on the order in which threads came;
// what it holds does not, so the bits are always the same.
struct Lists {
  const int32_t* ids;
  int64_t tokens, first_row, table_rows;
  int segment;
  int32_t* counts;      // [table rows] tokens of a row, zero at first
  int32_t* cursors;     // [2] list places given out to light rows, segments given out to heavy ones; zero at first
  int32_t* starts;      // [table rows] first place of a row's list, for rows with tokens
  int32_t* rank;        // [tokens] place within the list; -1: not this rank's row
  int32_t* arrived;     // [places] tokens of each list as threads came
  int32_t* sorted;      // [places] tokens of each list in order
  int32_t heavy_place;  // first place of heavy lists; a multiple of `segment`

  __device__ int64_t row_of(int64_t token) const { return ids[token] - first_row; }
  __device__ bool heavy(int count) const { return count > segment; }
  /// Row of `partials` of the segment that starts at this place of a heavy list.
  __device__ int64_t partial_row(int place) const { return (place - heavy_place) / segment; }
};

__device__ inline int64_t global_thread() {
  return static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}

__global__ void count_tokens_kernel(Lists lists) {
  const int64_t token = global_thread();
  if (token >= lists.tokens) return;
  const int64_t row = lists.row_of(token);
  const bool here = row >= 0 && row < lists.table_rows;
  lists.rank[token] = here ? atomicAdd(&lists.counts[row], 1) : -1;
}

__global__ void place_lists_kernel(Lists lists) {
  const int64_t token = global_thread();
  if (token >= lists.tokens || lists.rank[token] != 0) return;  // one token of each row
  const int64_t row = lists.row_of(token);
  const int count = lists.counts[row];
  const int segments = (count + lists.segment - 1) / lists.segment;
  lists.starts[row] = lists.heavy(count) ? lists.heavy_place + lists.segment * atomicAdd(&lists.cursors[1], segments)
                                         : atomicAdd(&lists.cursors[0], count);
}

__global__ void fill_lists_kernel(Lists lists) {
  const int64_t token = global_thread();
  if (token >= lists.tokens || lists.rank[token] < 0) return;
  lists.arrived[lists.starts[lists.row_of(token)] + lists.rank[token]] = static_cast<int32_t>(token);
}

constexpr int kSortLanes = 8;  // neighbouring lanes share the list of a token, which may be long

/// The rank of a token: how many tokens of its list come before it.
__global__ void sort_lists_kernel(Lists lists) {
  const int64_t token = global_thread() / kSortLanes;
  const int lane = threadIdx.x % kSortLanes;
  const bool here = token < lists.tokens && lists.rank[token] >= 0;  // all lanes stay for the sum of the warp
  const int64_t row = here ? lists.row_of(token) : 0;
  const int count = here ? lists.counts[row] : 0;
  const int32_t* list = lists.arrived + (here ? lists.starts[row] : 0);
  int before = 0;
#pragma unroll 8
  for (int i = lane; i < count; i += kSortLanes) before += list[i] < token ? 1 : 0;
  before = lane_sum(before, kSortLanes);
  if (!here || lane != 0) return;
  lists.sorted[lists.starts[row] + before] = static_cast<int32_t>(token);
  lists.rank[token] = before;
}

/// A warp adds rows over a tile of columns; a lane has kVectors vectors of N of them. Most tokens of a frequent word
/// have nothing to add: they should cost a warp, not a block.
template <int N>
struct ColumnTile {
  static constexpr int kVectors = 4;
  static constexpr int64_t kColumns = kWarp * kVectors * N;
  static constexpr int kWarps = 8;  // of a block
  int64_t first, cols;
  float sum[kVectors][N] = {};

  __device__ explicit ColumnTile(int64_t cols) : first(blockIdx.y * kColumns + threadIdx.x % kWarp * N), cols(cols) {}
  static __device__ int64_t token() { return static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp; }
  static dim3 grid(int64_t tokens, int64_t cols) {
    return {grid_size(ceil_div(tokens, kWarps)), grid_size(ceil_div(cols, kColumns))};
  }

  /// Adds rows row_of(i), for i from begin to end, in order; several are read before the first is added. `at(row, col)`
  /// points to an element.
  template <class T, class At>
  __device__ void add_rows(int begin, int end, const At& at) {
    constexpr int kAhead = 2;
    for (int i = begin; i < end; i += kAhead) {
      Packed<T, N> ahead[kAhead][kVectors];
#pragma unroll
      for (int a = 0; a < kAhead; ++a)
#pragma unroll
        for (int v = 0; v < kVectors; ++v)
          if (i + a < end && col(v) < cols) ahead[a][v] = Packed<T, N>::load(at(i + a, col(v)));
#pragma unroll
      for (int a = 0; a < kAhead; ++a)
#pragma unroll
        for (int v = 0; v < kVectors; ++v) {
          if (i + a >= end || col(v) >= cols) continue;
          float x[N];
          ahead[a][v].unpack(x);
#pragma unroll
          for (int j = 0; j < N; ++j) sum[v][j] += x[j];
        }
    }
  }
  /// row [cols] (+)= the sums.
  __device__ void store(float* row, bool accumulate) {
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (col(v) >= cols) break;
      if (accumulate) {
        float before[N];
        load_vector<N>(row + col(v), before);
#pragma unroll
        for (int j = 0; j < N; ++j) sum[v][j] += before[j];
      }
      store_vector<N>(row + col(v), sum[v]);
    }
  }

 private:
  __device__ int64_t col(int vector) const {
    return first + vector * kWarp * N;
  }
};
constexpr int kSumThreads = ColumnTile<1>::kWarps * kWarp;

/// If a segment begins with the warp's token: its sum, into the table's gradient or, of a heavy row, into partials
/// [segments, C].
template <class T, int N>
__global__ void __launch_bounds__(kSumThreads) sum_segments_kernel(Lists lists, View<T> dout, View<float> dweight,
                                                                   float* partials, int64_t cols, bool accumulate) {
  const int64_t token = ColumnTile<N>::token();
  const int rank = token < lists.tokens ? lists.rank[token] : -1;
  if (rank < 0 || rank % lists.segment != 0) return;
  const int64_t row = lists.row_of(token);
  const int count = lists.counts[row], start = lists.starts[row];
  const int32_t* list = lists.sorted + start;
  ColumnTile<N> tile(cols);
  tile.template add_rows<T>(rank, min(count, rank + lists.segment),
                            [&](int i, int64_t col) { return dout.at(list[i], col); });
  if (lists.heavy(count))
    tile.store(partials + lists.partial_row(start + rank) * cols, false);
  else
    tile.store(dweight.at(row, 0), accumulate);
}

/// If the warp's token is the first of a heavy row: the sum of the row's segments in order.
template <int N>
__global__ void __launch_bounds__(kSumThreads)
    sum_heavy_rows_kernel(Lists lists, View<float> dweight, const float* partials, int64_t cols, bool accumulate) {
  const int64_t token = ColumnTile<N>::token();
  if (token >= lists.tokens || lists.rank[token] != 0) return;
  const int64_t row = lists.row_of(token);
  const int count = lists.counts[row];
  if (!lists.heavy(count)) return;
  const float* from = partials + lists.partial_row(lists.starts[row]) * cols;
  ColumnTile<N> tile(cols);
  tile.template add_rows<float>(0, (count + lists.segment - 1) / lists.segment,
                                [&](int i, int64_t col) { return from + i * cols + col; });
  tile.store(dweight.at(row, 0), accumulate);
}

/// Zeros in the rows that no token has.
struct ZeroUnused {
  View<float> dweight;
  const int32_t* counts;
  template <int N>
  struct Loaded {
    bool used;
  };
  template <int N>
  __device__ Loaded<N> load(int64_t row, int64_t) const {
    return {counts[row] != 0};
  }
  template <int N>
  __device__ void store(int64_t row, int64_t col, const Loaded<N>& loaded) const {
    const float zeros[N] = {};
    if (!loaded.used) store_vector<N>(dweight.at(row, col), zeros);
  }
};

/// Cuts the workspace into pieces.
class Scratch {
 public:
  explicit Scratch(void* start) : start_(static_cast<char*>(start)) {}
  template <class T>
  T* take(int64_t count) {
    T* piece = reinterpret_cast<T*>(start_ + used_);
    used_ += round_up(count * static_cast<int64_t>(sizeof(T)), kMemoryAlignment);
    return piece;
  }
  int64_t used() const { return used_; }

 private:
  char* start_;
  int64_t used_ = 0;
};

/// Lists and partials in the workspace, with segments as short as the room for partials allows.
Lists take_lists(const Context& ctx, const EmbeddingBackwardArgs& args, float*& partials) {
  const int64_t tokens = args.dout.rows, rows = args.dweight.rows, width = args.dout.cols;
  const auto lay_out = [&](int64_t segment) {
    Scratch scratch(ctx.workspace);
    Lists lists{};
    lists.ids = args.ids.as<int32_t>();
    lists.tokens = tokens;
    lists.first_row = args.first_row;
    lists.table_rows = rows;
    lists.segment = static_cast<int>(segment);
    lists.heavy_place = static_cast<int32_t>(ceil_div(tokens, segment) * segment);
    const int64_t places = lists.heavy_place + 2 * tokens;  // a heavy list, rounded up, is less than twice its tokens
    lists.counts = scratch.take<int32_t>(rows + 2);
    lists.cursors = lists.counts + rows;
    lists.starts = scratch.take<int32_t>(rows);
    lists.rank = scratch.take<int32_t>(tokens);
    lists.arrived = scratch.take<int32_t>(places);
    lists.sorted = scratch.take<int32_t>(places);
    partials = scratch.take<float>(ceil_div(2 * tokens, segment) * width);
    return std::pair(lists, scratch.used());
  };
  int64_t segment = 32;
  while (segment < tokens && lay_out(segment).second > ctx.workspace_bytes) segment *= 2;
  const auto [lists, bytes] = lay_out(segment);
  workspace(ctx, bytes, "embedding_backward");
  return lists;
}

void sort_tokens(const Context& ctx, const Lists& lists) {
  const cudaStream_t stream = stream_of(ctx);
  const unsigned blocks = grid_size(ceil_div(lists.tokens, 256));
  check_cuda(cudaMemsetAsync(lists.counts, 0, static_cast<std::size_t>((lists.table_rows + 2) * 4), stream),
             "embedding_backward");
  count_tokens_kernel<<<blocks, 256, 0, stream>>>(lists);
  place_lists_kernel<<<blocks, 256, 0, stream>>>(lists);
  fill_lists_kernel<<<blocks, 256, 0, stream>>>(lists);
  sort_lists_kernel<<<grid_size(ceil_div(lists.tokens * kSortLanes, 256)), 256, 0, stream>>>(lists);
  check_cuda(cudaGetLastError(), "embedding_backward");
}

template <class T, int N>
void sum_lists(const Context& ctx, const EmbeddingBackwardArgs& args, const Lists& lists, float* partials) {
  const int64_t width = args.dout.cols;
  const View<float> dweight = view_of<float>(args.dweight);
  const dim3 grid = ColumnTile<N>::grid(lists.tokens, width);
  sum_segments_kernel<T, N><<<grid, kSumThreads, 0, stream_of(ctx)>>>(lists, view_of<T>(args.dout), dweight, partials,
                                                                      width, args.accumulate);
  if (lists.tokens > lists.segment)
    sum_heavy_rows_kernel<N>
        <<<grid, kSumThreads, 0, stream_of(ctx)>>>(lists, dweight, partials, width, args.accumulate);
  check_cuda(cudaGetLastError(), "embedding_backward");
  if (!args.accumulate)
    launch_elementwise<4, 4>(ctx, ZeroUnused{dweight, lists.counts}, args.dweight.rows, width, aligned16(args.dweight),
                             "embedding_backward");
}

}  // namespace

void embedding_forward(const Context& ctx, const EmbeddingForwardArgs& args) {
  const int64_t tokens = args.out.rows, width = args.out.cols;
  check_shape(args.ids, "embedding_forward: ids", Dtype::i32, 1, tokens);
  check_shape(args.weight, "embedding_forward: weight", args.out.dtype, args.weight.rows, width);
  visit_float(args.out.dtype, "embedding_forward", [&](auto tag) {
    using T = typename decltype(tag)::type;
    const Lookup<T> body{view_of<T>(args.weight), view_of<T>(args.out), args.ids.as<int32_t>(),
                         args.first_row,          args.weight.rows,     args.accumulate};
    launch_elementwise<kVector<T>, 4>(ctx, body, tokens, width, all_aligned16(args.weight, args.out),
                                      "embedding_forward");
  });
}

void embedding_backward(const Context& ctx, const EmbeddingBackwardArgs& args) {
  const int64_t tokens = args.dout.rows, width = args.dout.cols;
  check_shape(args.ids, "embedding_backward: ids", Dtype::i32, 1, tokens);
  check_shape(args.dweight, "embedding_backward: dweight", accumulator_dtype(args.dout.dtype), args.dweight.rows,
              width);
  TRAINER_CHECK(tokens < (int64_t{1} << 29) && args.dweight.rows > 0, "embedding_backward: {} tokens, {} rows", tokens,
                args.dweight.rows);
  if (tokens == 0) {
    if (!args.accumulate) fill(ctx, {args.dweight, 0.0});
    return;
  }
  float* partials = nullptr;
  const Lists lists = take_lists(ctx, args, partials);
  sort_tokens(ctx, lists);
  visit_float(args.dout.dtype, "embedding_backward", [&](auto tag) {
    using T = typename decltype(tag)::type;
    if (all_aligned16(args.dout, args.dweight) && width % kVector<T> == 0)
      sum_lists<T, kVector<T>>(ctx, args, lists, partials);
    else
      sum_lists<T, 1>(ctx, args, lists, partials);
  });
}

}  // namespace trainer::ops::cuda
