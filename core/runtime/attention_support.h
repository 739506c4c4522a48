// What cuDNN's fused attention can do, as configuration, memory plan and kernels agree on. A card is given by its
// compute capability x 10; one that is not known (0) counts as new.
#pragma once
#include <cstdint>

namespace trainer {

/// It begins with Ampere.
constexpr bool has_cudnn_attention(int sm) {
  return sm == 0 || sm >= 80;
}
/// Documents of several lengths are for Hopper (kernels/cuda/attention_cudnn.cc).
constexpr bool has_cudnn_documents(int sm) {
  return sm == 0 || sm == 90;
}

constexpr bool cudnn_takes_head_dim(std::int64_t head_dim) {
  return head_dim % 8 == 0 && head_dim <= 128;
}
/// What documents want besides.
constexpr bool cudnn_documents_take_head_dim(std::int64_t head_dim) {
  return head_dim % 16 == 0;
}

}  // namespace trainer
