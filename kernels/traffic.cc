#include "kernels/traffic.h"

#include <algorithm>
#include <initializer_list>

namespace trainer {

const char* op_kind_name(OpKind kind) {
  static constexpr const char* kNames[kOpKinds] = {"GEMM", "attention", "memory-bound", "optimizer", "communication"};
  return kNames[static_cast<std::size_t>(kind)];
}

namespace ops {
namespace {

/// Absent tensors have no bytes. Views count their columns, not what lies between.
std::int64_t bytes_of(std::initializer_list<Tensor> tensors) {
  std::int64_t sum = 0;
  for (const Tensor& tensor : tensors)
    if (tensor) sum += tensor.rows * tensor.cols * dtype_size(tensor.dtype);
  return sum;
}

/// An output that is added to is read as well.
std::int64_t bytes_updated(const Tensor& tensor, bool accumulate) {
  return (accumulate ? 2 : 1) * bytes_of({tensor});
}

std::string shape_of(const Tensor& tensor) {
  return fmt::format("{} x {}", tensor.rows, tensor.cols);
}

OpCost memory_bound(const Tensor& main, std::int64_t bytes) {
  return {.kind = OpKind::memory_bound, .bytes = bytes, .shape = shape_of(main)};
}

OpCost optimizer(const Tensor& main, std::int64_t bytes) {
  return {.kind = OpKind::optimizer, .bytes = bytes, .shape = shape_of(main)};
}

/// [rows, in] times [in, out].
OpCost gemm(std::int64_t rows, std::int64_t in, std::int64_t out, std::int64_t bytes) {
  return {.kind = OpKind::gemm,
          .bytes = bytes,
          .flops = 2.0 * static_cast<double>(rows) * static_cast<double>(in) * static_cast<double>(out),
          .shape = fmt::format("{} x {} -> {}", rows, in, out)};
}

/// Tables tell a product with more in it from the product alone.
OpCost with(OpCost product, const Tensor& optional, const char* what) {
  if (optional) product.shape += fmt::format(", {}", what);
  return product;
}

/// Causal pairs only, half of T x T; with a window those inside it. Forward has 2 products, backward 5 (one of them
/// computes the probabilities again).
OpCost attention(const AttentionShape& shape, const Tensor& q, int products, std::int64_t bytes) {
  const double length = static_cast<double>(shape.max_seq);
  const double window = shape.window > 0 ? std::min(static_cast<double>(shape.window), length) : length;
  const double attended = window - window * window / (2 * length);  // tokens that a token sees, on average
  return {.kind = OpKind::attention,
          .bytes = bytes,
          .flops = 2.0 * products * static_cast<double>(q.rows) * attended *
                   static_cast<double>(shape.heads * shape.head_dim),
          .shape = fmt::format("{} x {} heads x {}, T {}", q.rows, shape.heads, shape.head_dim, shape.max_seq)};
}

/// Rows of a table of `rows` rows that `tokens` tokens can touch.
std::int64_t touched(const Tensor& table, std::int64_t tokens) {
  return std::min(table.rows, tokens) * table.cols * dtype_size(table.dtype);
}

/// Bytes that an update moves for each element.
std::int64_t update_bytes_each(const ShardTensors& shard) {
  std::int64_t state = 0;
  for (const Tensor& tensor : {shard.weight, shard.low, shard.master, shard.m, shard.v})
    if (tensor) state += dtype_size(tensor.dtype);
  return 2 * state + dtype_size(shard.grad.dtype);
}

template <class Run>
OpCost optimizer_of(const RunTable<Run>& runs, std::int64_t bytes_each) {
  std::int64_t elements = 0;
  for (const Run& run : runs) elements += run.count;
  return {.kind = OpKind::optimizer,
          .bytes = elements * bytes_each,
          .shape = fmt::format("{} in {} tensors", elements, runs.count)};
}

}  // namespace

OpCost cost(const FillArgs& a) {
  return memory_bound(a.x, bytes_of({a.x}));
}
OpCost cost(const CastArgs& a) {
  return memory_bound(a.in, bytes_of({a.in, a.out}));
}
OpCost cost(const AddArgs& a) {
  return memory_bound(a.out, bytes_of({a.a, a.b, a.out}));
}
OpCost cost(const SumPartsArgs& a) {
  return memory_bound(a.parts, bytes_of({a.parts}) + bytes_updated(a.out, a.accumulate));
}
OpCost cost(const AddBiasArgs& a) {
  return memory_bound(a.x, 2 * bytes_of({a.x}) + bytes_of({a.bias}));
}
OpCost cost(const BiasBackwardArgs& a) {
  return memory_bound(a.dy, bytes_of({a.dy}) + bytes_updated(a.dbias, a.accumulate));
}
OpCost cost(const DropoutArgs& a) {
  return memory_bound(a.x, bytes_of({a.x, a.out}));
}
OpCost cost(const DrawNormalArgs& a) {
  return memory_bound(a.out, bytes_of({a.out}));
}
OpCost cost(const EmbeddingForwardArgs& a) {
  return memory_bound(a.out, bytes_of({a.ids}) + touched(a.weight, a.ids.cols) + bytes_updated(a.out, a.accumulate));
}
OpCost cost(const EmbeddingBackwardArgs& a) {
  const std::int64_t written = a.accumulate ? 2 * touched(a.dweight, a.ids.cols) : bytes_of({a.dweight});
  return memory_bound(a.dout, bytes_of({a.ids, a.dout}) + written);
}
OpCost cost(const AddNormForwardArgs& a) {
  const bool writes_sum = a.branch || a.sum.data != a.x.data;
  return memory_bound(
      a.x, bytes_of({a.x, a.branch, a.weight, a.bias, a.out, a.mean, a.rstd}) + (writes_sum ? bytes_of({a.sum}) : 0));
}
OpCost cost(const NormBackwardArgs& a) {
  return memory_bound(a.sum, bytes_of({a.dout, a.sum, a.weight, a.mean, a.rstd, a.dresidual, a.dx}) +
                                 bytes_updated(a.dweight, a.accumulate) + bytes_updated(a.dbias, a.accumulate));
}
OpCost cost(const HeadNormForwardArgs& a) {
  return memory_bound(a.x, bytes_of({a.x, a.weight, a.out, a.rstd}));
}
OpCost cost(const HeadNormBackwardArgs& a) {
  return memory_bound(a.x, bytes_of({a.dout, a.x, a.weight, a.rstd, a.dx}) + bytes_updated(a.dweight, a.accumulate));
}
OpCost cost(const RopeArgs& a) {
  const std::int64_t rotated = a.x.rows * a.heads * a.cos_sin.cols * dtype_size(a.x.dtype);
  return memory_bound(a.x, 2 * rotated + bytes_of({a.positions}) + touched(a.cos_sin, a.x.rows));
}
OpCost cost(const LinearForwardArgs& a) {
  return with(gemm(a.x.rows, a.x.cols, a.y.cols, bytes_of({a.x, a.w, a.bias, a.addend, a.y, a.activated})), a.activated,
              "gelu");
}
OpCost cost(const LinearBackwardInputArgs& a) {
  return with(gemm(a.dy.rows, a.dy.cols, a.dx.cols,
                   bytes_of({a.dy, a.w, a.activation_input}) + bytes_updated(a.dx, a.accumulate)),
              a.activation_input, "gelu'");
}
OpCost cost(const LinearBackwardWeightArgs& a) {
  return with(gemm(a.dy.cols, a.dy.rows, a.x.cols,
                   bytes_of({a.dy, a.x}) + bytes_updated(a.dw, a.accumulate) + bytes_updated(a.dbias, a.accumulate)),
              a.dbias, "dbias");
}
OpCost cost(const ActivationForwardArgs& a) {
  return memory_bound(a.x, bytes_of({a.x, a.out}));
}
OpCost cost(const ActivationBackwardArgs& a) {
  return memory_bound(a.x, bytes_of({a.x, a.dout, a.dx}));
}
OpCost cost(const AttentionForwardArgs& a) {
  return attention(a.shape, a.q, 2, bytes_of({a.q, a.k, a.v, a.out, a.lse}));
}
OpCost cost(const AttentionBackwardArgs& a) {
  return attention(a.shape, a.q, 5, bytes_of({a.q, a.k, a.v, a.out, a.lse, a.dout, a.dq, a.dk, a.dv}));
}
OpCost cost(const CrossEntropyStatsArgs& a) {
  return memory_bound(a.logits, bytes_of({a.logits, a.targets, a.stats}));
}
OpCost cost(const CrossEntropyFinishArgs& a) {
  return memory_bound(a.logits, (a.backward ? 2 * bytes_of({a.logits}) : 0) + bytes_of({a.targets, a.stats}));
}
OpCost cost(const CrossEntropyArgs& a) {
  return memory_bound(a.logits, (a.backward ? 2 : 1) * bytes_of({a.logits}) + bytes_of({a.targets}));
}
OpCost cost(const SquaredNormArgs& a) {
  return optimizer_of(a.runs, dtype_size(a.x.dtype));
}
OpCost cost(const PrepareUpdateArgs& a) {
  return optimizer(a.norm, bytes_of({a.norm, a.sums}) + 2 * static_cast<std::int64_t>(sizeof(UpdateState)));
}
OpCost cost(const AdamWArgs& a) {
  return optimizer_of(a.runs, update_bytes_each(a.shard));
}
OpCost cost(const SgdArgs& a) {
  return optimizer_of(a.runs, update_bytes_each(a.shard));
}
OpCost cost(const MasterReadArgs& a) {
  return optimizer(a.out, bytes_of({a.shard.weight, a.shard.low, a.shard.master, a.out}));
}
OpCost cost(const MasterWriteArgs& a) {
  return optimizer(a.in, bytes_of({a.in, a.shard.weight, a.shard.low, a.shard.master}));
}

}  // namespace ops
}  // namespace trainer
