// The decision of a step, taken on the device without the host waiting.
#include "kernels/cuda/common.cuh"
#include "kernels/update_rule.h"

namespace trainer::ops::cuda {
namespace {

__global__ void prepare_update_kernel(PrepareUpdateArgs args) {
  decide_update(args, static_cast<const double*>(args.norm.data), static_cast<const double*>(args.sums.data),
                *args.state);
}

}  // namespace

void prepare_update(const Context& ctx, const PrepareUpdateArgs& args) {
  check_shape(args.norm, "prepare_update: norm", Dtype::f64, 1, 2);
  check_shape(args.sums, "prepare_update: sums", Dtype::f64, 1, 3);
  prepare_update_kernel<<<1, 1, 0, stream_of(ctx)>>>(args);
  check_cuda(cudaGetLastError(), "prepare_update");
}

}  // namespace trainer::ops::cuda
