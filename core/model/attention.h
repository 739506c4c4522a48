// Self-attention of a block: q, k, v in one GEMM, optional norm of q and k, rotary embedding, causal attention, output
// projection. Column-parallel, then row-parallel. Query heads are split over tp ranks; so are key/value heads until
// there are fewer of them than ranks.
#pragma once
#include "core/model/linear.h"

namespace trainer {

/// cos and sin of the rotary angles, [P, 2 R] A: Su et al. 2021, with the scaling rules of `rope_scaling` (llama3:
/// Grattafiori et al. 2024).
struct RopeTable {
  Tensor cos_sin;
  std::int64_t rotary_dim = 0;  // 2 R: elements of a head that are rotated
};
RopeTable allocate_rope_table(const Config& config, Arena& arena, Dtype accumulator);
/// Fills the table. `host` runs over host memory of the same shape and type.
void fill_rope_table(const Config& config, const Tensor& host);

class Attention {
 public:
  Attention(const Config& config, int block, const std::string& name, ParamList& params);

  struct Saved {
    Tensor qkv;             // [N, (H + 2 K) D]: q, k rotated (and without qk_norm final), v
    Tensor normed;          // [N, (H + K) D]: q and k after norm and rotation; qk_norm only; cheap to compute again
    Tensor q_rstd, k_rstd;  // [N, H], [N, K] A; qk_norm only
    Tensor out;             // [N, H D]
    Tensor lse;             // [1, N H] A
  };
  struct Workspace {
    Tensor dout;  // [N, H D]
    Tensor dqkv;  // [N, (H + 2 K) D]
  };
  /// Room for what selective recompute drops, shared by all layers; absent when it drops nothing.
  Tensor allocate_cheap(const ModelShape& shape, Arena& arena) const;
  /// `cheap`: that room; absent: Saved gets its own.
  Saved allocate(const ModelShape& shape, Arena& arena, const Tensor& cheap) const;
  static Workspace allocate_workspace(const ModelShape& shape, Arena& arena);

  /// saved.out = attention(h) without its output projection out(). h [N, C]
  void forward(const Pass& pass, const BlockParams& params, const ModelShape& shape, const RopeTable& rope,
               const Entering& h, const Saved& saved) const;
  /// Computes saved.normed again, with the same bits.
  void recompute(const Pass& pass, const BlockParams& params, const ModelShape& shape, const RopeTable& rope,
                 const Saved& saved) const;
  /// dout [N, C], the gradient of what out() made -> dh, which starts to leave. h is needed whole, towards the end.
  void backward(const Pass& pass, const BlockParams& params, const ModelShape& shape, const RopeTable& rope,
                const Entering& h, const Saved& saved, const Workspace& work, const Entering& dout,
                const Leaving& dh) const;

  const Linear& out() const { return out_; }

 private:
  struct Views {
    Tensor q, k, v;
  };
  Views inputs(const ModelShape& shape, const Saved& saved) const;
  void rotate(const Pass& pass, const ModelShape& shape, const RopeTable& rope, const Tensor& qk, bool inverse) const;
  ops::AttentionShape attention_shape(const Pass& pass, const ModelShape& shape) const;

  bool qk_norm_;
  double norm_eps_;
  std::int64_t window_;
  std::int64_t total_heads_;
  double dropout_;
  std::int64_t dropout_site_;
  ParamId q_norm_ = kNoParam, k_norm_ = kNoParam;  // declared first: partial gradients lie side by side
  Linear qkv_, out_;
};

}  // namespace trainer
