// What every layer is handed during a forward or backward pass, and the sizes that it works with.
#pragma once
#include <cstdint>
#include <vector>

#include "core/config/config.h"
#include "core/runtime/arena.h"
#include "core/runtime/param.h"
#include "core/runtime/rng.h"
#include "kernels/ops.h"
#include "parallel/tensor_parallel.h"

namespace trainer {

/// Sizes on this rank. Derived once from the configuration.
struct ModelShape {
  std::int64_t tokens = 0;         // N: tokens of a micro-batch, all of them
  std::int64_t local_tokens = 0;   // N / tp under sequence parallel, else N
  std::int64_t sequences = 0;      // B
  std::int64_t seq_length = 0;     // T
  std::int64_t hidden = 0;         // C
  std::int64_t heads = 0;          // query heads of this rank
  std::int64_t kv_heads = 0;       // key/value heads of this rank, at least 1
  std::int64_t head_dim = 0;       // D
  std::int64_t mlp = 0;            // F: MLP width of this rank
  std::int64_t vocab = 0;          // V: vocabulary rows of this rank, padding included
  std::int64_t vocab_first = 0;    // global id of the first of them
  std::int64_t vocab_valid = 0;    // how many of them are real tokens
  Dtype dtype = Dtype::f32;        // T: weights and activations
  Dtype accumulator = Dtype::f32;  // A: sums, statistics, gradients of weights

  std::int64_t q_cols() const { return heads * head_dim; }
  std::int64_t kv_cols() const { return kv_heads * head_dim; }
  std::int64_t qkv_cols() const { return q_cols() + 2 * kv_cols(); }
};
ModelShape model_shape(const Config& config, int tp_rank, int tp_size);

/// Initial standard deviation of the projections back into the residual stream: 1 / sqrt(2 x num_layers) of the
/// others', so that the stream's variance does not grow with depth (Radford et al. 2019).
double residual_init_std(const ModelConfig& model);

/// One micro-batch on the device. Rows are the tokens of B samples, one behind the other; a sample is one sequence, or
/// several documents.
struct Batch {
  Tensor ids;                    // [1, N] i32
  Tensor targets;                // [1, N] i32, kIgnoredTarget where masked
  Tensor positions;              // [1, N] i32
  Tensor starts;                 // [1, S + 1] i32: where the S sequences begin, and N
  std::int64_t max_seq = 0;      // longest sequence
  std::int64_t first_slot = 0;   // place of the first sample in the global batch
  std::int64_t first_token = 0;  // first_slot x T
};

/// One forward (and backward) pass over one micro-batch.
struct Pass {
  const Context& ctx;
  TensorParallel& tp;
  const Batch& batch;
  std::uint64_t dropout_key = 0;  // of (seed, step)
  bool dropout = false;           // off in evaluation
  bool another_follows = false;   // with the same weights: those that it begins with can be fetched early
};

/// The parameters of one block while they are acquired: flat buffers seen through the layout. Gradients are absent in a
/// pass without backward.
struct BlockParams {
  const ParamLayout& layout;
  Tensor weights;
  BlockGrads grads;
  bool accumulate = true;  // false: gradients overwrite (first micro-batch of a step)

  Tensor w(ParamId id) const { return id < 0 ? Tensor{} : layout.view(weights, id); }
  /// A, or T for a matrix whose gradient is not added to.
  Tensor g(ParamId id) const { return g(id, id); }
  Tensor w(ParamId first, ParamId last) const { return first < 0 ? Tensor{} : layout.fused_view(weights, first, last); }
  Tensor g(ParamId first, ParamId last) const {
    return first < 0 || !grads.flat ? Tensor{} : grads.view(layout, first, last);
  }
};

constexpr ParamId kNoParam = -1;

/// Collects the declarations of all layers.
class ParamList {
 public:
  ParamId add(ParamDecl decl) {
    decls_.push_back(std::move(decl));
    return static_cast<ParamId>(decls_.size()) - 1;
  }
  const std::vector<ParamDecl>& decls() const { return decls_; }

 private:
  std::vector<ParamDecl> decls_;
};

/// The residual stream between blocks: its value is residual + branch. Where the matrix product that makes the branch
/// cannot add the residual at once, the sum is left to the next norm, which reads both anyway.
struct ResidualStream {
  Tensor residual;  // [local N, C]
  Tensor branch;    // [local N, C], or absent
};

/// Places of a block where dropout is drawn. Sites are numbered over the model, so that each has its own mask.
enum class DropoutSite : std::uint8_t { embedding, attention_probabilities, attention_branch, mlp_branch };
inline std::int64_t dropout_site(int block, DropoutSite site) {
  return static_cast<std::int64_t>(block) * 4 + static_cast<std::int64_t>(site);
}

/// The dropout to draw at a site in this pass.
inline DropoutKey dropout_at(const Pass& pass, double p, std::int64_t site) {
  if (!pass.dropout || p <= 0.0) return {};
  return {p, mix_key(pass.dropout_key, static_cast<std::uint64_t>(site))};
}

/// x = dropout(x) on the rows that this rank holds outside of attention and MLP.
void hidden_dropout(const Pass& pass, const Tensor& x, const Tensor& out, const DropoutKey& dropout);

}  // namespace trainer
