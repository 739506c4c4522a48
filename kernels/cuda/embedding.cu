// Table look-up and its gradient.
#include <algorithm>

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

/// The rank of a token: how many tokens of its list come before it.
__global__ void sort_lists_kernel(Lists lists) {
  const int64_t token = global_thread();
  if (token >= lists.tokens || lists.rank[token] < 0) return;
  const int64_t row = lists.row_of(token);
  const int count = lists.counts[row];
  const int32_t* list = lists.arrived + lists.starts[row];
  int before = 0;
#pragma unroll 8
  for (int i = 0; i < count; ++i) before += list[i] < token ? 1 : 0;
  lists.sorted[lists.starts[row] + before] = static_cast<int32_t>(token);
  lists.rank[token] = before;
}

constexpr int kSumThreads = 128;

template <int N>
__device__ inline void add_to(float* out, float (&sum)[N], bool accumulate) {
  if (accumulate) {
    float before[N];
    load_vector<N>(out, before);
#pragma unroll
    for (int i = 0; i < N; ++i) sum[i] += before[i];
  }
  store_vector<N>(out, sum);
}

/// Block (token, tile): if a segment begins with the token, its sum over columns of the tile, into the table's gradient
/// or, of a heavy row, into partials [segments, C].
template <class T, int N>
__global__ void __launch_bounds__(kSumThreads) sum_segments_kernel(Lists lists, View<T> dout, View<float> dweight,
                                                                   float* partials, int64_t cols, bool accumulate) {
  constexpr int kAhead = 4;
  const int64_t token = blockIdx.x;
  const int rank = lists.rank[token];
  if (rank < 0 || rank % lists.segment != 0) return;
  const int64_t col = (static_cast<int64_t>(blockIdx.y) * kSumThreads + threadIdx.x) * N;
  if (col >= cols) return;
  const int64_t row = lists.row_of(token);
  const int count = lists.counts[row], start = lists.starts[row];
  const int end = min(count, rank + lists.segment);
  const int32_t* list = lists.sorted + start;
  float sum[N] = {};
  int i = rank;
  for (; i + kAhead <= end; i += kAhead) {
    Packed<T, N> ahead[kAhead];
#pragma unroll
    for (int a = 0; a < kAhead; ++a) ahead[a] = Packed<T, N>::load(dout.at(list[i + a], col));
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      float x[N];
      ahead[a].unpack(x);
#pragma unroll
      for (int j = 0; j < N; ++j) sum[j] += x[j];
    }
  }
  for (; i < end; ++i) {
    float x[N];
    load_vector<N>(dout.at(list[i], col), x);
#pragma unroll
    for (int j = 0; j < N; ++j) sum[j] += x[j];
  }
  if (lists.heavy(count))
    store_vector<N>(partials + lists.partial_row(start + rank) * cols + col, sum);
  else
    add_to<N>(dweight.at(row, col), sum, accumulate);
}

/// Block (token, tile): if the token is the first of a heavy row, the sum of the row's segments in order.
template <int N>
__global__ void __launch_bounds__(kSumThreads)
    sum_heavy_rows_kernel(Lists lists, View<float> dweight, const float* partials, int64_t cols, bool accumulate) {
  const int64_t token = blockIdx.x;
  if (lists.rank[token] != 0) return;
  const int64_t row = lists.row_of(token);
  const int count = lists.counts[row];
  const int64_t col = (static_cast<int64_t>(blockIdx.y) * kSumThreads + threadIdx.x) * N;
  if (!lists.heavy(count) || col >= cols) return;
  const float* from = partials + lists.partial_row(lists.starts[row]) * cols + col;
  const int segments = (count + lists.segment - 1) / lists.segment;
  float sum[N] = {};
#pragma unroll 4
  for (int s = 0; s < segments; ++s) {
    float x[N];
    load_vector<N>(from + s * cols, x);
#pragma unroll
    for (int j = 0; j < N; ++j) sum[j] += x[j];
  }
  add_to<N>(dweight.at(row, col), sum, accumulate);
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
    used_ += ceil_div(count * static_cast<int64_t>(sizeof(T)), 256) * 256;
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
  sort_lists_kernel<<<blocks, 256, 0, stream>>>(lists);
  check_cuda(cudaGetLastError(), "embedding_backward");
}

template <class T, int N>
void sum_lists(const Context& ctx, const EmbeddingBackwardArgs& args, const Lists& lists, float* partials) {
  const int64_t width = args.dout.cols;
  const View<float> dweight = view_of<float>(args.dweight);
  const dim3 grid(grid_size(lists.tokens), grid_size(ceil_div(width, kSumThreads * N)));
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
