#include "tests/kernels/op_cases.h"

#include "kernels/ops.h"

namespace trainer::testing {
namespace {

const Context kCpu{};
constexpr std::int64_t kWidth = 37;  // odd, and not a multiple of any vector length
using Outputs = std::vector<OpOutput>;

HostIds some_ids(std::int64_t n, std::int32_t modulus) {
  std::vector<std::int32_t> ids;
  for (std::int64_t i = 0; i < n; ++i) ids.push_back(static_cast<std::int32_t>((i * i + 3 * i) % modulus));
  return HostIds(std::move(ids));
}

Outputs add(Workbench& w) {
  const HostTensor a = w.in(w.tokens(), kWidth), b = w.in(w.tokens(), kWidth);
  HostTensor out = w.out(w.tokens(), kWidth);
  ops::add(kCpu, {.a = a, .b = b, .out = out});
  return {{"out", out, true}};
}

Outputs bias(Workbench& w) {
  HostTensor x = w.in(w.tokens(), kWidth), dbias = w.sums(kWidth, 1);
  const HostTensor bias = w.vector(kWidth);
  ops::bias_backward(kCpu, {.dy = x, .dbias = dbias});
  ops::add_bias(kCpu, {.x = x, .bias = bias});
  return {{"x", x, true}, {"dbias", dbias, false}};
}

Outputs dropout(Workbench& w) {
  const HostTensor x = w.in(w.tokens(), kWidth);
  HostTensor out = w.out(w.tokens(), kWidth);
  ops::dropout(kCpu, {.x = x, .out = out, .dropout = {.p = 0.25, .key = 8}, .row_offset = 5});
  return {{"out", out, true}};
}

Outputs embedding(Workbench& w) {
  const HostIds ids = some_ids(w.tokens(), 11);
  const HostTensor weight = w.in(7, kWidth), dout = w.in(w.tokens(), kWidth);
  HostTensor out = w.in(w.tokens(), kWidth), dweight = w.sums(7, kWidth);
  ops::embedding_forward(kCpu, {.ids = ids, .weight = weight, .out = out, .first_row = 2, .accumulate = true});
  ops::embedding_backward(kCpu, {.ids = ids, .dout = dout, .dweight = dweight, .first_row = 2});
  return {{"out", out, true}, {"dweight", dweight, false}};
}

Outputs norm(Workbench& w, NormKind kind) {
  const HostTensor x = w.in(w.tokens(), kWidth), weight = w.vector(kWidth), bias = w.vector(kWidth);
  const HostTensor dout = w.in(w.tokens(), kWidth), dresidual = w.in(w.tokens(), kWidth);
  HostTensor out = w.out(w.tokens(), kWidth), dx = w.out(w.tokens(), kWidth);
  HostTensor mean = w.sums(1, w.tokens()), rstd = mean, dweight = w.sums(kWidth, 1), dbias = dweight;
  const Tensor mean_arg = kind == NormKind::layernorm ? mean.tensor() : Tensor{};
  ops::add_norm_forward(
      kCpu, {.kind = kind, .x = x, .weight = weight, .bias = bias, .out = out, .mean = mean_arg, .rstd = rstd});
  ops::norm_backward(kCpu, {.kind = kind,
                            .dout = dout,
                            .sum = x,
                            .weight = weight,
                            .mean = mean_arg,
                            .rstd = rstd,
                            .dresidual = dresidual,
                            .dx = dx,
                            .dweight = dweight,
                            .dbias = dbias});
  return {{"out", out, true},          {"dx", dx, true},       {"mean", mean, false}, {"rstd", rstd, false},
          {"dweight", dweight, false}, {"dbias", dbias, false}};
}

Outputs head_norm(Workbench& w) {
  constexpr std::int64_t kHeads = 3, kHeadDim = 7;
  const HostTensor x = w.in(w.tokens(), kHeads * kHeadDim), dout = w.in(w.tokens(), kHeads * kHeadDim);
  const HostTensor weight = w.vector(kHeadDim);
  HostTensor out = w.out(w.tokens(), kHeads * kHeadDim), dx = out, rstd = w.sums(w.tokens(), kHeads);
  HostTensor dweight = w.sums(kHeadDim, 1);
  ops::head_norm_forward(kCpu, {.heads = kHeads, .x = x, .weight = weight, .out = out, .rstd = rstd});
  ops::head_norm_backward(
      kCpu, {.heads = kHeads, .dout = dout, .x = x, .weight = weight, .rstd = rstd, .dx = dx, .dweight = dweight});
  return {{"out", out, true}, {"dx", dx, true}, {"rstd", rstd, false}, {"dweight", dweight, false}};
}

Outputs rope(Workbench& w) {
  HostTensor x = w.in(w.tokens(), 3 * 7), table = w.sums(16, 4);
  for (std::int64_t p = 0; p < 16; ++p)
    for (std::int64_t i = 0; i < 2; ++i) {
      const double angle = static_cast<double>(p) / (1.0 + 9.0 * static_cast<double>(i));
      table.set(p, i, rounded_to(Dtype::f32, std::cos(angle)));
      table.set(p, 2 + i, rounded_to(Dtype::f32, std::sin(angle)));
    }
  const HostIds positions = some_ids(w.tokens(), 16);
  ops::rope(kCpu, {.x = x, .positions = positions, .cos_sin = table, .heads = 3});
  return {{"x", x, true}};
}

Outputs linear(Workbench& w) {
  constexpr std::int64_t kOutputs = 19;
  const HostTensor x = w.in(w.tokens(), kWidth), weight = w.in(kOutputs, kWidth), bias = w.vector(kOutputs);
  const HostTensor dy = w.in(w.tokens(), kOutputs);
  HostTensor y = w.in(w.tokens(), kOutputs), dx = w.in(w.tokens(), kWidth), dw = w.sums(kOutputs, kWidth);
  HostTensor dbias = w.sums(kOutputs, 1);
  ops::linear_forward(kCpu, {.x = x, .w = weight, .bias = bias, .y = y, .addend = y});
  ops::linear_backward_input(kCpu, {.dy = dy, .w = weight, .dx = dx, .accumulate = true});
  ops::linear_backward_weight(kCpu, {.dy = dy, .x = x, .dw = dw, .dbias = dbias});
  return {{"y", y, true}, {"dx", dx, true}, {"dw", dw, false}, {"dbias", dbias, false}};
}

/// Products small enough that the function is not flat.
Outputs linear_activation(Workbench& w, Activation kind) {
  constexpr std::int64_t kOutputs = 19;
  const HostTensor x = w.in(w.tokens(), kWidth, 0.3), weight = w.in(kOutputs, kWidth, 0.3), bias = w.vector(kOutputs);
  const HostTensor dy = w.in(w.tokens(), kOutputs), input = w.in(w.tokens(), kWidth);
  HostTensor y = w.out(w.tokens(), kOutputs), activated = y, dx = w.out(w.tokens(), kWidth);
  ops::linear_forward(kCpu, {.x = x, .w = weight, .bias = bias, .y = y, .activated = activated, .activation = kind});
  ops::linear_backward_input(kCpu, {.dy = dy, .w = weight, .dx = dx, .activation_input = input, .activation = kind});
  return {{"y", y, true}, {"activated", activated, true}, {"dx", dx, true}};
}

Outputs activation(Workbench& w, Activation kind) {
  const std::int64_t in_width = kind == Activation::swiglu ? 2 * kWidth : kWidth;
  const HostTensor x = w.in(w.tokens(), in_width), dout = w.in(w.tokens(), kWidth);
  HostTensor out = w.out(w.tokens(), kWidth), dx = w.out(w.tokens(), in_width);
  ops::activation_forward(kCpu, {.kind = kind, .x = x, .out = out});
  ops::activation_backward(kCpu, {.kind = kind, .x = x, .dout = dout, .dx = dx});
  return {{"out", out, true}, {"dx", dx, true}};
}

/// q, k and v are views of one buffer, and so are their gradients. Two sequences, window, dropout, grouped queries.
/// The backward op is given an arbitrary `out`, so that its own rounding is all that is seen.
Outputs attention(Workbench& w) {
  constexpr std::int64_t kHeads = 4, kKvHeads = 2, kHeadDim = 5;
  constexpr std::int64_t kQ = kHeads * kHeadDim, kKv = kKvHeads * kHeadDim;
  const std::int64_t n = w.tokens();
  const HostTensor qkv = w.in(n, kQ + 2 * kKv), dout = w.in(n, kQ), other_out = w.in(n, kQ);
  HostTensor dqkv = w.out(n, kQ + 2 * kKv), out = w.out(n, kQ), lse = w.sums(1, n * kHeads);
  const HostIds starts{0, static_cast<std::int32_t>(n / 3), static_cast<std::int32_t>(n)};
  ops::AttentionShape shape{.heads = kHeads, .kv_heads = kKvHeads, .head_dim = kHeadDim, .scale = 0.5};
  shape.window = n / 2;
  shape.max_seq = n;
  shape.dropout = {.p = 0.25, .key = 6};
  shape.total_heads = kHeads;
  const auto cut = [](const HostTensor& t, std::int64_t first, std::int64_t cols) {
    return t.tensor().col_range(first, cols);
  };
  const Tensor q = cut(qkv, 0, kQ), k = cut(qkv, kQ, kKv), v = cut(qkv, kQ + kKv, kKv);
  ops::attention_forward(
      kCpu, {.shape = shape, .q = q, .k = k, .v = v, .q_starts = starts, .kv_starts = starts, .out = out, .lse = lse});
  ops::attention_backward(kCpu, {.shape = shape,
                                 .q = q,
                                 .k = k,
                                 .v = v,
                                 .q_starts = starts,
                                 .kv_starts = starts,
                                 .out = other_out,
                                 .lse = lse,
                                 .dout = dout,
                                 .dq = cut(dqkv, 0, kQ),
                                 .dk = cut(dqkv, kQ, kKv),
                                 .dv = cut(dqkv, kQ + kKv, kKv)});
  return {{"out", out, true}, {"lse", lse, false}, {"dqkv", dqkv, true}};
}

Outputs cross_entropy(Workbench& w) {
  HostTensor logits = w.in(w.tokens(), kWidth, 3.0), stats = w.sums(w.tokens(), 3);
  HostTensor losses(Dtype::f64, 1, 3);
  const HostIds targets = some_ids(w.tokens(), kWidth - 2);
  ops::cross_entropy_stats(kCpu, {.logits = logits, .targets = targets, .stats = stats, .valid_cols = kWidth - 2});
  ops::cross_entropy_finish(kCpu, {.logits = logits,
                                   .targets = targets,
                                   .stats = stats,
                                   .sums = losses,
                                   .valid_cols = kWidth - 2,
                                   .grad_scale = 4.0,
                                   .z_loss = 0.01});
  return {{"stats", stats, false}, {"sums", losses, false}, {"dlogits", logits, true}};
}

}  // namespace

HostTensor Workbench::random(HostTensor t, double scale) {
  const std::uint64_t key = next_key_++;
  for (std::int64_t r = 0; r < t.rows(); ++r)
    for (std::int64_t c = 0; c < t.cols(); ++c)
      t.set(r, c, rounded_to(values_, scale * normal_at(key, static_cast<std::uint64_t>(r * t.cols() + c))));
  return t;
}

std::vector<OpCase> op_cases() {
  return {{"add", add},
          {"bias", bias},
          {"dropout", dropout},
          {"embedding", embedding},
          {"layernorm", [](Workbench& w) { return norm(w, NormKind::layernorm); }},
          {"rmsnorm", [](Workbench& w) { return norm(w, NormKind::rmsnorm); }},
          {"head_norm", head_norm},
          {"rope", rope},
          {"linear", linear, true},
          {"linear with gelu", [](Workbench& w) { return linear_activation(w, Activation::gelu); }, true},
          {"linear with gelu_tanh", [](Workbench& w) { return linear_activation(w, Activation::gelu_tanh); }, true},
          {"gelu", [](Workbench& w) { return activation(w, Activation::gelu); }},
          {"gelu_tanh", [](Workbench& w) { return activation(w, Activation::gelu_tanh); }},
          {"swiglu", [](Workbench& w) { return activation(w, Activation::swiglu); }},
          {"attention", attention},
          {"cross_entropy", cross_entropy}};
}

}  // namespace trainer::testing
