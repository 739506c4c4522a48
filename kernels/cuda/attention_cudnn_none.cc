// A build without cuDNN or its frontend headers: every attention is our own.
#include "kernels/cuda/attention_cudnn.h"

namespace trainer {

struct AttentionPlans::Impl {};
// NOLINTNEXTLINE(performance-unnecessary-value-param): the real one keeps it
AttentionPlans::AttentionPlans(Warn) {}
AttentionPlans::~AttentionPlans() = default;
std::int64_t AttentionPlans::workspace_bytes() const {
  return 0;
}

namespace ops::cuda {

bool cudnn_attention_fits(const Context&, const AttentionShape&, const Tensor&, const Tensor&, const Tensor&,
                          const Tensor&) {
  return false;
}
bool cudnn_attention_serves(const Context&, const AttentionForwardArgs&) {
  return false;
}
bool cudnn_attention_serves(const Context&, const AttentionBackwardArgs&) {
  return false;
}
void cudnn_attention_forward(const Context&, const AttentionForwardArgs&) {
  TRAINER_CHECK(false, "built without cuDNN");
}
void cudnn_attention_backward(const Context&, const AttentionBackwardArgs&) {
  TRAINER_CHECK(false, "built without cuDNN");
}

}  // namespace ops::cuda
}  // namespace trainer
