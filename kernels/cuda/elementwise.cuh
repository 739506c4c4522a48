// One launch for every op that treats each element (or each run of neighbouring elements) on its own.
#pragma once
#include "kernels/cuda/common.cuh"

namespace trainer::ops::cuda {

/// A Body has, for N = 1 and for the launch's N:
///   template <int N> struct Loaded;                                       what is read
///   template <int N> __device__ Loaded<N> load(int64_t row, int64_t col) const;
///   template <int N> __device__ void store(int64_t row, int64_t col, const Loaded<N>&) const;
/// for elements col .. col + N of the row. A thread loads `kItems` vectors before it stores the first, so that enough
/// reads are in flight.
template <int N, int kItems, class Body>
__global__ void __launch_bounds__(256) elementwise_kernel(Body body, int64_t rows, int64_t cols) {
  const int64_t vectors = (cols + N - 1) / N;  // of a row; the last may be short
  const int64_t items = rows * vectors;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * (256 * kItems) + threadIdx.x;
  int64_t row[kItems], col[kItems];
  typename Body::template Loaded<N> loaded[kItems];
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const int64_t item = first + 256 * i;
    if (rows == 1)
      row[i] = 0;
    else if (items <= 0xffffffff)  // 64-bit division is slow
      row[i] = static_cast<uint32_t>(item) / static_cast<uint32_t>(vectors);
    else
      row[i] = item / vectors;
    col[i] = (item - row[i] * vectors) * N;
    if (item >= items) col[i] = cols;
    if (col[i] + N <= cols) loaded[i] = body.template load<N>(row[i], col[i]);
  }
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    if (col[i] + N <= cols)
      body.template store<N>(row[i], col[i], loaded[i]);
    else
      for (int64_t c = col[i]; c < cols; ++c) body.template store<1>(row[i], c, body.template load<1>(row[i], c));
  }
}

/// Body over [rows, cols]. `aligned`: N elements from any multiple of N in a row can be accessed 16 bytes at a time.
template <int N, int kItems, class Body>
void launch_elementwise(const Context& ctx, const Body& body, int64_t rows, int64_t cols, bool aligned,
                        const char* op) {
  if (rows == 0 || cols == 0) return;
  const int64_t items = rows * ceil_div(cols, aligned ? N : 1);
  const unsigned blocks = grid_size(ceil_div(items, 256 * kItems));
  if (aligned)
    elementwise_kernel<N, kItems><<<blocks, 256, 0, stream_of(ctx)>>>(body, rows, cols);
  else
    elementwise_kernel<1, kItems><<<blocks, 256, 0, stream_of(ctx)>>>(body, rows, cols);
  check_cuda(cudaGetLastError(), op);
}

/// [rows, cols] of the loop over tensors of one shape: one long row when all are contiguous.
struct LoopShape {
  int64_t rows, cols;
};
template <class... Tensors>
LoopShape loop_shape(const Tensor& first, const Tensors&... others) {
  if (all_contiguous(first, others...)) return {1, first.numel()};
  return {first.rows, first.cols};
}

}  // namespace trainer::ops::cuda
