// Random tensors, with the bits of the CPU body.
#include "kernels/cuda/common.cuh"

namespace trainer::ops::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void draw_normal_kernel(View<double> out, int64_t rows, int64_t cols, uint64_t key, int64_t first,
                                   int64_t total_cols, double std) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= rows * cols) return;
  const int64_t row = i / cols, col = i % cols;
  const int64_t index = first + row * total_cols + col;
  *out.at(row, col) = rounded::product(std, normal_at(key, static_cast<uint64_t>(index)));
}

}  // namespace

void draw_normal(const Context& ctx, const DrawNormalArgs& args) {
  const int64_t rows = args.out.rows, cols = args.out.cols;
  if (rows * cols == 0) return;
  draw_normal_kernel<<<grid_size(ceil_div(rows * cols, kThreads)), kThreads, 0, stream_of(ctx)>>>(
      view_of<double>(args.out), rows, cols, args.key, args.first_row * args.total_cols + args.first_col,
      args.total_cols, args.std);
  check_cuda(cudaGetLastError(), "draw_normal");
}

}  // namespace trainer::ops::cuda
