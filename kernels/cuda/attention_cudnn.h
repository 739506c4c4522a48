// cuDNN's fused attention (sm_80 and newer): plans built once a shape, remembered with the context.
#pragma once
#include <cstdint>
#include <memory>
#include <tuple>
#include <unordered_map>

#include "core/runtime/context.h"
#include "kernels/ops.h"

namespace trainer {

/// What a plan depends on: everything but the addresses.
struct AttentionPlanKey {
  std::int64_t sequences = 0, seq_q = 0, seq_kv = 0;
  std::int64_t heads = 0, kv_heads = 0, head_dim = 0, window = 0;
  std::int64_t q_stride = 0, k_stride = 0, v_stride = 0, out_stride = 0;
  std::int64_t dout_stride = 0, dq_stride = 0, dk_stride = 0, dv_stride = 0;  // backward only
  double scale = 0.0;
  Dtype dtype = Dtype::bf16;
  bool backward = false, deterministic = false;

  auto tie() const {
    return std::tie(sequences, seq_q, seq_kv, heads, kv_heads, head_dim, window, q_stride, k_stride, v_stride,
                    out_stride, dout_stride, dq_stride, dk_stride, dv_stride, scale, dtype, backward, deterministic);
  }
  bool operator<(const AttentionPlanKey& other) const { return tie() < other.tie(); }
};

/// The plans of one context, and the scratch memory that the hungriest of them needs. A plan is built when its shape is
/// first seen, which takes tens of milliseconds and may allocate: the trainer's warm-up does it before the first step.
class AttentionPlans {
 public:
  AttentionPlans();
  ~AttentionPlans();

  /// Addresses of the tensors of a graph, by the graph's numbers for them.
  using Addresses = std::unordered_map<std::int64_t, void*>;

  /// Queues the plan for `key` on ctx.stream.
  void run(const Context& ctx, const AttentionPlanKey& key, Addresses addresses);
  /// Bytes of scratch that the plans share.
  std::int64_t workspace_bytes() const;

 private:
  struct Impl;  // keeps cuDNN out of this header
  std::unique_ptr<Impl> impl_;
};

namespace ops::cuda {
/// True when cuDNN can do this call on this card: 16-bit types, no dropout on probabilities, sequences of one length
/// above 1.
bool cudnn_attention_fits(const Context& ctx, const AttentionShape& shape, const Tensor& q, const Tensor& q_starts,
                          const Tensor& k);
void cudnn_attention_forward(const Context& ctx, const AttentionForwardArgs& args);
void cudnn_attention_backward(const Context& ctx, const AttentionBackwardArgs& args);
}  // namespace ops::cuda

}  // namespace trainer
