// cuDNN's fused attention (sm_80 and newer): plans built once a shape, remembered with the context.
#pragma once
#include <cstdint>
#include <memory>
#include <tuple>
#include <unordered_map>

#include "core/runtime/context.h"
#include "kernels/backend.h"
#include "kernels/ops.h"

namespace trainer {

/// What a plan depends on: everything but the addresses. A plan for documents (tokens > 0) is one for `sequences`, some
/// of them empty, of at most seq_q tokens: both are rounded up, so that micro-batches share plans.
struct AttentionPlanKey {
  std::int64_t sequences = 0, seq_q = 0, seq_kv = 0;
  std::int64_t tokens = 0;  // documents: of all of them; 0: all sequences have seq_q tokens
  std::int64_t heads = 0, kv_heads = 0, head_dim = 0, window = 0;
  std::int64_t q_stride = 0, k_stride = 0, v_stride = 0, out_stride = 0;
  std::int64_t dout_stride = 0, dq_stride = 0, dk_stride = 0, dv_stride = 0;  // backward only
  double scale = 0.0;
  Dtype dtype = Dtype::bf16;
  bool backward = false, deterministic = false;

  auto tie() const {
    return std::tie(sequences, seq_q, seq_kv, tokens, heads, kv_heads, head_dim, window, q_stride, k_stride, v_stride,
                    out_stride, dout_stride, dq_stride, dk_stride, dv_stride, scale, dtype, backward, deterministic);
  }
  bool operator<(const AttentionPlanKey& other) const { return tie() < other.tie(); }
  /// Documents whose query heads share key/value heads: cuDNN then keeps dK and dV of every query head, in float32, in
  /// rows that are wider than those of dk and dv by the number of heads that share. dk and dv are views of a wide
  /// buffer; rows of their own, from which they are copied, keep that small.
  bool own_dkv() const { return tokens > 0 && backward && heads != kv_heads; }
};

/// The plans of one context, and the scratch memory that the hungriest of them needs. A plan is built when its shape is
/// first seen, which takes a while and may allocate: the trainer's warm-up does it before the first step.
/// Numbers and lengths of documents that the warm-up did not see may want a plan later; once each, as they are rounded
/// up to powers of two.
class AttentionPlans {
 public:
  /// `warn` may be empty.
  explicit AttentionPlans(Warn warn);
  ~AttentionPlans();

  /// Addresses of the tensors of a graph, by the graph's numbers for them.
  using Addresses = std::unordered_map<std::int64_t, void*>;

  /// Whether cuDNN has a plan for `key`; the first time that it has none, warns.
  bool serves(const Context& ctx, const AttentionPlanKey& key);
  /// Queues the plan for `key` on ctx.stream. q_starts as in ops::AttentionForwardArgs, looked at where key.tokens > 0.
  /// Throws Error(other), naming the shape, where cuDNN has no plan.
  void run(const Context& ctx, const AttentionPlanKey& key, Addresses addresses, const Tensor& q_starts);
  /// Bytes of scratch that the plans share.
  std::int64_t workspace_bytes() const;

 private:
  struct Impl;  // keeps cuDNN out of this header
  std::unique_ptr<Impl> impl_;
};

namespace ops::cuda {
/// True when cuDNN can do this call on this card: 16-bit types, no dropout on probabilities, sequences of one length
/// above 1; or documents of any lengths, q's being k's (one tensor of starts), on sm_90 where the bits may differ from
/// run to run.
bool cudnn_attention_fits(const Context& ctx, const AttentionShape& shape, const Tensor& q, const Tensor& k,
                          const Tensor& q_starts, const Tensor& kv_starts);
/// Whether there is a plan for a call that fits; builds it.
bool cudnn_attention_serves(const Context& ctx, const AttentionForwardArgs& args);
bool cudnn_attention_serves(const Context& ctx, const AttentionBackwardArgs& args);
/// For calls that fit. Throw Error(other), naming the shape, where there is no plan.
void cudnn_attention_forward(const Context& ctx, const AttentionForwardArgs& args);
void cudnn_attention_backward(const Context& ctx, const AttentionBackwardArgs& args);
}  // namespace ops::cuda

}  // namespace trainer
