#include "tests/gpu/attention_volta.h"

#include "kernels/cuda/attention_flash_backward.cuh"
#include "kernels/cuda/attention_flash_forward.cuh"

namespace trainer::testing {
/// A type of its own, so that the library's kernels, which are empty on newer cards, stay what they are.
struct VoltaOnAnyCard : ops::cuda::VoltaMma {
  static constexpr bool kCompiled = true;
};
}  // namespace trainer::testing

namespace trainer::ops::cuda {
template <int HeadDim>
struct FlashForwardSizes<testing::VoltaOnAnyCard, HeadDim> : FlashForwardSizes<VoltaMma, HeadDim> {};
template <int HeadDim>
struct FlashBackwardSizes<testing::VoltaOnAnyCard, HeadDim> : FlashBackwardSizes<VoltaMma, HeadDim> {};
}  // namespace trainer::ops::cuda

namespace trainer::testing {

void volta_attention_forward(const Context& ctx, const ops::AttentionForwardArgs& args) {
  if (args.shape.head_dim == 64)
    ops::cuda::flash_forward<VoltaOnAnyCard, 64>(ctx, args);
  else
    ops::cuda::flash_forward<VoltaOnAnyCard, 128>(ctx, args);
}

void volta_attention_backward(const Context& ctx, const ops::AttentionBackwardArgs& args) {
  if (args.shape.head_dim == 64)
    ops::cuda::flash_backward<VoltaOnAnyCard, 64>(ctx, args);
  else
    ops::cuda::flash_backward<VoltaOnAnyCard, 128>(ctx, args);
}

}  // namespace trainer::testing
