// The one interface to all computation. Each op is a free function `ops::name(ctx, args)`; its arguments are a struct
// with named fields, so that a call reads like its formula. `kernels/cpu` gives each op its meaning, `kernels/cuda` its
// speed; dispatch.cc picks by ctx.device. Ops know no ranks, allocate nothing, and are deterministic.
//
// Letters: N tokens, C hidden size, V vocabulary (local part), H query heads, K key/value heads, D head size, T the
// type of weights and activations (float64, float32, bf16, fp16), A the type of sums and statistics: float64 when T is
// float64, float32 otherwise. Rows are tokens. "+=" outputs are added to when `accumulate`, overwritten otherwise.
#pragma once
#include <cstdint>
#include <initializer_list>

#include "core/config/config.h"
#include "core/runtime/context.h"
#include "core/runtime/targets.h"
#include "core/runtime/tensor.h"

namespace trainer {

/// A for a given T.
inline Dtype accumulator_dtype(Dtype t) {
  return t == Dtype::f64 ? Dtype::f64 : Dtype::f32;
}

/// T for a given precision.
inline Dtype weight_dtype(Precision precision) {
  switch (precision) {
    case Precision::float64:
      return Dtype::f64;
    case Precision::float32:
      return Dtype::f32;
    case Precision::bf16:
      return Dtype::bf16;
    case Precision::fp16:
      break;
  }
  return Dtype::f16;
}

/// Scalars of the optimizer step that live on the device: decided there, without the host waiting
/// (kernels/cpu/update.cc). Saved in checkpoints; read by the log one step late.
struct UpdateState {
  // Loss scaler (names of PyTorch's GradScaler). loss_scale stays 1 when scaling is off.
  double loss_scale = 1.0;
  std::int64_t growth_tracker = 0;   // finite steps since the last change
  std::int64_t hysteresis_left = 1;  // non-finite steps until the scale backs off
  std::int64_t updates = 0;          // applied steps: Adam's t
  std::int64_t consecutive_skips = 0;
  // Of the last step:
  double grad_norm = 0.0;    // of the true gradient (unscaled, before clipping)
  double grad_factor = 1.0;  // stored gradient x this = the gradient that the optimizer uses
  double loss_sum = 0.0;     // over the target tokens of the global batch
  double z_loss_sum = 0.0;
  double target_tokens = 0.0;       // unmasked targets of the global batch
  std::int64_t first_bad = 0;       // index of the first tensor with a non-finite gradient, or kNoBadTensor
  std::int64_t skipped = 0;         // 1: the step was not applied
  std::int64_t scale_at_floor = 0;  // 1: skipped although the scale was already at min_scale
};
constexpr std::int64_t kNoBadTensor = INT64_MAX;

/// Dropout draws element (row, col) by the global index (row_offset + row) x total_cols + col_offset + col of the
/// stream `key`, so that a mask does not depend on the layout. An element is kept when uniform >= p, and then divided
/// by 1 - p.
struct DropoutKey {
  double p = 0.0;
  std::uint64_t key = 0;  // of (seed, step, site)
};

namespace ops {

// ---- small things -------------------------------------------------------------------------------------------------
struct FillArgs {
  Tensor x;  // any float type
  double value = 0.0;
};
struct CastArgs {
  Tensor in;   // [N, C], any float type
  Tensor out;  // [N, C], any float type; rounds to nearest even
};
/// out = a + b, one rounding. out may be a or b.
struct AddArgs {
  Tensor a, b, out;  // [N, C] T
};
/// sum = parts[0] + parts[1] + ..., added in this order in A, rounded to T once: what several ranks computed of one
/// sum. out = sum, or with `accumulate` out += sum. out may be one of the parts, or `own`.
struct SumPartsArgs {
  Tensor parts;  // [P * N, C] T: part after part
  Tensor own;    // [N, C] T, optional: stands for parts[own_part], which is not read
  std::int64_t own_part = 0;
  bool accumulate = false;
  Tensor out;  // [N, C] T or A
};
/// x += bias on every row.
struct AddBiasArgs {
  Tensor x;     // [N, C] T
  Tensor bias;  // [C, 1] T
};
/// dbias += column sums of dy, in A.
struct BiasBackwardArgs {
  Tensor dy;     // [N, C] T
  Tensor dbias;  // [C, 1] A
  bool accumulate = true;
};
/// out = mask(x) / (1 - p); its own gradient. out may be x.
struct DropoutArgs {
  Tensor x, out;  // [N, C] T
  DropoutKey dropout;
  std::int64_t row_offset = 0;  // global index of the first row
};

/// out[r][c] = std * normal_at(key, (first_row + r) * total_cols + first_col + c): a part of a tensor that is drawn by
/// global element index, with the same bits on every device.
struct DrawNormalArgs {
  Tensor out;  // [R, C] f64
  std::uint64_t key = 0;
  std::int64_t first_row = 0, first_col = 0, total_cols = 0;
  double std = 1.0;
};

// ---- embedding ----------------------------------------------------------------------------------------------------
/// out[n] (+)= weight[ids[n] - first_row]; ids outside this rank's rows give zero (their rank adds them). Serves tokens
/// and positions.
struct EmbeddingForwardArgs {
  Tensor ids;     // [1, N] i32
  Tensor weight;  // [V, C] T
  Tensor out;     // [N, C] T
  std::int64_t first_row = 0;
  bool accumulate = false;
};
/// dweight[ids[n] - first_row] += dout[n], in a fixed order. Without `accumulate` all rows are set.
struct EmbeddingBackwardArgs {
  Tensor ids;      // [1, N] i32
  Tensor dout;     // [N, C] T
  Tensor dweight;  // [V, C] A
  std::int64_t first_row = 0;
  bool accumulate = true;
};

// ---- normalisation ------------------------------------------------------------------------------------------------
/// sum = x + branch (one rounding); out = norm(sum) * weight (+ bias). LayerNorm: Ba et al. 2016; RMSNorm: Zhang and
/// Sennrich 2019. The statistics are those of the rounded sum. Hugging Face's RMSNorm rounds x * rstd before the
/// weight; we round once.
struct AddNormForwardArgs {
  NormKind kind = NormKind::rmsnorm;
  double eps = 1e-5;
  Tensor x;       // [N, C] T
  Tensor branch;  // [N, C] T, or absent: sum = x
  Tensor weight;  // [C, 1] T
  Tensor bias;    // [C, 1] T, or absent
  Tensor sum;     // [N, C] T out; may be x; absent only without branch
  Tensor out;     // [N, C] T out
  Tensor mean;    // [1, N] A out; layernorm only, absent otherwise
  Tensor rstd;    // [1, N] A out: 1 / sqrt(variance + eps)
};
/// dx = dresidual + d(norm)/d(sum) . dout; dweight, dbias +=.
struct NormBackwardArgs {
  NormKind kind = NormKind::rmsnorm;
  Tensor dout;       // [N, C] T
  Tensor sum;        // [N, C] T
  Tensor weight;     // [C, 1] T
  Tensor mean;       // [1, N] A; layernorm only
  Tensor rstd;       // [1, N] A
  Tensor dresidual;  // [N, C] T, gradient that reaches the sum by another way; or absent
  Tensor dx;         // [N, C] T out; may be dout or dresidual
  Tensor dweight;    // [C, 1] A
  Tensor dbias;      // [C, 1] A, or absent
  bool accumulate = true;
};
/// RMSNorm of each head of q or k on its own, weight shared by the heads (Qwen 3).
struct HeadNormForwardArgs {
  double eps = 1e-6;
  std::int64_t heads = 0;
  Tensor x;       // [N, heads * D] T
  Tensor weight;  // [D, 1] T
  Tensor out;     // [N, heads * D] T; may be x
  Tensor rstd;    // [N, heads] A out
};
struct HeadNormBackwardArgs {
  std::int64_t heads = 0;
  Tensor dout;     // [N, heads * D] T
  Tensor x;        // [N, heads * D] T, the input of the forward op
  Tensor weight;   // [D, 1] T
  Tensor rstd;     // [N, heads] A
  Tensor dx;       // [N, heads * D] T out; may be dout
  Tensor dweight;  // [D, 1] A
  bool accumulate = true;
};

// ---- rotary position embedding ------------------------------------------------------------------------------------
/// Rotates the first 2 * R of each head's D elements in place, half-split pairs (i, i + R) as Hugging Face's models
/// have them (Su et al. 2021). `inverse` rotates back, which is the gradient.
struct RopeArgs {
  Tensor x;          // [N, heads * D] T, in place
  Tensor positions;  // [1, N] i32
  Tensor cos_sin;    // [P, 2 * R] A: cos of R angles, then sin of them, for each position
  std::int64_t heads = 0;
  bool inverse = false;
};

// ---- linear layers ------------------------------------------------------------------------------------------------
/// y = addend + x w^T + bias, summed in A, rounded once. With `activated`, which excludes `addend`: f(y) of the sum
/// before it is rounded.
struct LinearForwardArgs {
  Tensor x;                                       // [N, I] T
  Tensor w;                                       // [O, I] T
  Tensor bias;                                    // [O, 1] T, or absent
  Tensor y;                                       // [N, O] T
  Tensor addend;                                  // [N, O] T, or absent; may be y
  Tensor activated;                               // [N, O] T out, or absent
  Activation activation = Activation::gelu_tanh;  // f: gelu or gelu_tanh
};
/// dx (+)= dy w. With `activation_input`, which excludes `accumulate`: dx = (dy w) f'(activation_input), rounded once.
struct LinearBackwardInputArgs {
  Tensor dy;  // [N, O] T
  Tensor w;   // [O, I] T
  Tensor dx;  // [N, I] T
  bool accumulate = false;
  Tensor activation_input;                        // [N, I] T, or absent
  Activation activation = Activation::gelu_tanh;  // f: gelu or gelu_tanh
};
/// dw += dy^T x; dbias += column sums of dy. Both are summed in A. Where dw is of type T, which excludes `accumulate`,
/// it is rounded once.
struct LinearBackwardWeightArgs {
  Tensor dy;  // [N, O] T
  Tensor x;   // [N, I] T
  Tensor dw;  // [O, I] A or T
  bool accumulate = true;
  Tensor dbias;  // [O, 1] A, or absent
};

// ---- activation functions -----------------------------------------------------------------------------------------
/// gelu, gelu_tanh: out = f(x), x [N, F]. swiglu: x holds gate and up side by side [N, 2 F], out = silu(gate) * up [N,
/// F] (Shazeer 2020).
struct ActivationForwardArgs {
  Activation kind = Activation::gelu;
  Tensor x, out;
};
struct ActivationBackwardArgs {
  Activation kind = Activation::gelu;
  Tensor x;     // as in the forward op
  Tensor dout;  // [N, F] T
  Tensor dx;    // shape of x; may be x, or dout where that has its shape
};

// ---- attention ----------------------------------------------------------------------------------------------------
/// out = softmax(scale q k^T + mask) v for each sequence and head; head h reads key/value head h / (H / K). Causal,
/// aligned at the ends: query i of a sequence with nq queries and nk keys sees keys j <= i + nk - nq, and with a window
/// only j > i + nk - nq - window. Dropout on the probabilities draws by (((first_sequence + s) * total_heads +
/// first_head + h) * nq + i) * nk + j. lse, the log of each sum of exponentials (natural), lies sequence by sequence
/// and head by head: element (s, h, i) at heads * q_starts[s] + h * nq + i.
struct AttentionShape {
  std::int64_t heads = 0, kv_heads = 0, head_dim = 0;
  double scale = 0.0;        // 1 / sqrt(D)
  std::int64_t window = 0;   // 0: none
  std::int64_t max_seq = 0;  // longest sequence, known to the host
  DropoutKey dropout;
  std::int64_t first_sequence = 0, first_head = 0, total_heads = 0;  // for dropout
};
struct AttentionForwardArgs {
  AttentionShape shape;
  Tensor q;          // [N, H * D] T, a view of the qkv buffer
  Tensor k, v;       // [M, K * D] T
  Tensor q_starts;   // [1, B + 1] i32: sequence s holds query rows q_starts[s] .. q_starts[s + 1]
  Tensor kv_starts;  // [1, B + 1] i32
  Tensor out;        // [N, H * D] T
  Tensor lse;        // [1, N * H] A
};
struct AttentionBackwardArgs {
  AttentionShape shape;
  Tensor q, k, v, q_starts, kv_starts, out, lse;  // as in the forward op
  Tensor dout;                                    // [N, H * D] T
  Tensor dq, dk, dv;                              // T, shapes of q, k, v
};

// ---- vocabulary-parallel cross-entropy ----------------------------------------------------------------------------
/// First half: what this rank's columns say. stats[n] = (max, sum of exp(logit - max), logit of the target or 0 when
/// the target is elsewhere). Columns from `valid_cols` on are padding and never take part; a rank with none has max =
/// -inf, sum = 0.
struct CrossEntropyStatsArgs {
  Tensor logits;                // [N, V] T
  Tensor targets;               // [1, N] i32, global ids or kIgnoredTarget
  Tensor stats;                 // [N, 3] A
  std::int64_t first_col = 0;   // global id of column 0
  std::int64_t valid_cols = 0;  // columns that are real
};
/// Second half, after `stats` of all tp ranks were gathered: the losses, and with `backward` the gradient in place of
/// the logits: dlogits = loss_scale * grad_scale * (softmax * (1 + 2 z lse) - onehot), 0 for ignored targets and
/// padding columns. loss = lse - logit[target]; z-loss = z_loss * lse^2.
struct CrossEntropyFinishArgs {
  Tensor logits;   // [N, V] T; overwritten with dlogits when backward
  Tensor targets;  // [1, N] i32
  Tensor stats;    // [parts * N, 3] A: the parts of the tp ranks one behind the other
  Tensor sums;     // [1, 3] f64 +=: loss, z-loss, number of targets
  std::int64_t first_col = 0, valid_cols = 0;
  int parts = 1;
  double grad_scale = 1.0;  // 1 / (global_batch_size * seq_length)
  double z_loss = 0.0;
  const UpdateState* state = nullptr;  // loss_scale is read from here; null: 1
  bool backward = true;
};
/// Both halves in one, where this rank has all columns.
struct CrossEntropyArgs {
  Tensor logits;                // [N, V] T; overwritten with dlogits when backward
  Tensor targets;               // [1, N] i32, ids or kIgnoredTarget
  Tensor sums;                  // [1, 3] f64 +=: loss, z-loss, number of targets
  std::int64_t valid_cols = 0;  // columns that are real
  double grad_scale = 1.0;      // the rest as in CrossEntropyFinishArgs
  double z_loss = 0.0;
  const UpdateState* state = nullptr;
  bool backward = true;
};

// ---- optimizer ----------------------------------------------------------------------------------------------------
/// Runs of neighbouring elements of a flat shard, each of one parameter: an op treats them all in one launch. Held by
/// value, so that a call can be kept and a kernel can take the table as an argument.
template <class Run>
struct RunTable {
  static constexpr int kCapacity = 32;
  Run runs[kCapacity];
  int count = 0;

  RunTable() = default;
  RunTable(std::initializer_list<Run> list) {
    for (const Run& run : list) add(run);
  }
  bool full() const { return count == kCapacity; }
  void add(const Run& run) {
    TRAINER_CHECK(!full(), "more than {} runs", kCapacity);
    runs[count++] = run;
  }
  const Run* begin() const { return runs; }
  const Run* end() const { return runs + count; }
};

struct NormRun {
  std::int64_t first = 0, count = 0;  // elements of x
  std::int64_t tensor_index = 0;
  bool counted = true;  // false: only look for non-finite elements (copies of a replicated parameter)
};
/// result[0] += sum of squares of the runs that are counted (f64, fixed order); result[1] = min(result[1], tensor_index
/// of each run with a non-finite element).
struct SquaredNormArgs {
  Tensor x;  // [1, n] A
  RunTable<NormRun> runs;
  Tensor result;  // [1, 2] f64; the caller sets it to (0, +inf) at the start of a step
};
/// Decides a step on the device: unscale, clip, skip, and the loss scaler (PyTorch's GradScaler with hysteresis and a
/// floor).
struct PrepareUpdateArgs {
  UpdateState* state = nullptr;
  /// [1, 2] f64, reduced over the ranks: sum of squares of the stored gradients, first bad tensor (inf: none).
  Tensor norm;
  Tensor sums;                  // [1, 3] f64: loss, z-loss, target tokens, reduced over the ranks
  double grad_scale = 1.0;      // as given to cross-entropy; the device's token count corrects it
  double clip_grad_norm = 0.0;  // 0: off
  bool scaling = false;         // fp16
  LossScaleConfig scale;
};
/// What a parameter shard is made of. Precision float64, float32: weight alone. bf16: weight and `low` bits, together
/// an fp32 value. fp16: weight and `master`.
struct ShardTensors {
  Tensor weight;  // [1, n] T
  Tensor low;     // [1, n] u16; bf16 only
  Tensor master;  // [1, n] f32; fp16 only
  Tensor grad;    // [1, n] A
  Tensor m, v;    // [1, n] f64, f32 or bf16; sgd has only m, absent without momentum

  /// Elements [first, first + count) of each tensor that is there.
  ShardTensors flat_range(std::int64_t first, std::int64_t count) const {
    const auto part = [&](const Tensor& tensor) { return tensor ? tensor.flat_range(first, count) : Tensor{}; };
    return {part(weight), part(low), part(master), part(grad), part(m), part(v)};
  }
};
/// What an update must know of a run: the decay of its parameter and, for stochastic rounding, a stream of noise and
/// where the elements lie in the global tensor (global_index in kernels/optimizer_bits.h).
struct UpdateRun {
  std::int64_t first = 0, count = 0;  // elements of the shard
  double weight_decay = 0.0;
  std::uint64_t rounding_key = 0;  // of (seed, parameter); the op mixes in the update
  std::int64_t first_index = 0;    // global index of the run's first element
  std::int64_t row_gap = 0;        // global elements between the end of a row of this rank's columns and the next row
  std::int64_t cols = 0;           // this rank's columns, when there is a gap
  std::int64_t first_col = 0;      // among them, of the run's first element
};
/// AdamW (Loshchilov and Hutter 2019), one pass: g = grad * grad_factor; m, v; bias correction by state->updates
/// (already counted); decay on the weight. Nothing is written when state->skipped, nor outside the runs. bf16 moments
/// are rounded stochastically with the stream (rounding_key, state->updates) at the element's global index
/// (kernels/optimizer_bits.h).
struct AdamWArgs {
  ShardTensors shard;
  RunTable<UpdateRun> runs;
  const UpdateState* state = nullptr;
  double lr = 0.0, beta1 = 0.9, beta2 = 0.95, eps = 1e-8;
};
/// SGD with momentum as PyTorch's: g += weight_decay * w; m = momentum * m + g; w -= lr * (nesterov ? g + momentum * m
/// : m).
struct SgdArgs {
  ShardTensors shard;
  RunTable<UpdateRun> runs;
  const UpdateState* state = nullptr;
  double lr = 0.0, momentum = 0.0;
  bool nesterov = false;
};
/// The exact value of a shard as fp32 or wider (float64 in a float64 run), for checkpoints. docs/numerics.md: split
/// masters.
struct MasterReadArgs {
  ShardTensors shard;
  Tensor out;  // [1, n] f32 or f64
};
/// Sets weight, low and master from exact values; where low or master is absent (weights outside this rank's ZeRO
/// shard), the weight alone. Every bf16 weight is made by this rounding (half away from zero), split or not.
struct MasterWriteArgs {
  Tensor in;  // [1, n] f32 or f64
  ShardTensors shard;
};

/// All ops: one declaration each here, one definition in kernels/cpu, one in kernels/cuda.
#define TRAINER_OPS(OP)                                \
  OP(fill, FillArgs)                                   \
  OP(cast, CastArgs)                                   \
  OP(add, AddArgs)                                     \
  OP(sum_parts, SumPartsArgs)                          \
  OP(add_bias, AddBiasArgs)                            \
  OP(bias_backward, BiasBackwardArgs)                  \
  OP(dropout, DropoutArgs)                             \
  OP(draw_normal, DrawNormalArgs)                      \
  OP(embedding_forward, EmbeddingForwardArgs)          \
  OP(embedding_backward, EmbeddingBackwardArgs)        \
  OP(add_norm_forward, AddNormForwardArgs)             \
  OP(norm_backward, NormBackwardArgs)                  \
  OP(head_norm_forward, HeadNormForwardArgs)           \
  OP(head_norm_backward, HeadNormBackwardArgs)         \
  OP(rope, RopeArgs)                                   \
  OP(linear_forward, LinearForwardArgs)                \
  OP(linear_backward_input, LinearBackwardInputArgs)   \
  OP(linear_backward_weight, LinearBackwardWeightArgs) \
  OP(activation_forward, ActivationForwardArgs)        \
  OP(activation_backward, ActivationBackwardArgs)      \
  OP(attention_forward, AttentionForwardArgs)          \
  OP(attention_backward, AttentionBackwardArgs)        \
  OP(cross_entropy_stats, CrossEntropyStatsArgs)       \
  OP(cross_entropy_finish, CrossEntropyFinishArgs)     \
  OP(cross_entropy, CrossEntropyArgs)                  \
  OP(squared_norm, SquaredNormArgs)                    \
  OP(prepare_update, PrepareUpdateArgs)                \
  OP(adamw, AdamWArgs)                                 \
  OP(sgd, SgdArgs)                                     \
  OP(master_read, MasterReadArgs)                      \
  OP(master_write, MasterWriteArgs)

#define TRAINER_DECLARE_OP(name, Args) void name(const Context& ctx, const Args& args);
TRAINER_OPS(TRAINER_DECLARE_OP)
namespace cpu {
TRAINER_OPS(TRAINER_DECLARE_OP)
}
namespace cuda {
TRAINER_OPS(TRAINER_DECLARE_OP)
}
#undef TRAINER_DECLARE_OP

}  // namespace ops
}  // namespace trainer
