// Sizes past 2^31 elements. What an op does to the last rows of a huge tensor must be, bit for bit, what it does to a
// copy of those rows alone. Only with TRAINER_GPU_LARGE=1: about 30 GB of device memory.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "core/runtime/rng.h"
#include "kernels/cuda/attention_cudnn.h"
#include "tests/gpu/attention_args.h"
#include "tests/gpu/twin.h"

#define TRAINER_REQUIRE_LARGE() \
  TRAINER_REQUIRE_GPU();        \
  if (std::getenv("TRAINER_GPU_LARGE") == nullptr) GTEST_SKIP() << "only with TRAINER_GPU_LARGE=1"

namespace trainer::testing {
namespace {

constexpr std::int64_t kLast = 5;  // rows that are looked at

/// bf16 [rows, cols] on the card: 2^20 random numbers over and over.
class Large {
 public:
  Large(std::int64_t rows, std::int64_t cols, bool random = true)
      : memory_(allocate(gpu_context().device, rows * cols * 2, "a large test")),
        tensor(tensor_over(memory_.get(), Dtype::bf16, rows, cols)) {
    if (!random) return;
    constexpr std::int64_t kPattern = (std::int64_t{1} << 20) - 3;  // not a multiple of a row
    std::vector<Bfloat16> pattern(kPattern);
    for (std::int64_t i = 0; i < kPattern; ++i)
      pattern[static_cast<std::size_t>(i)] = Bfloat16(uniform_at(3, static_cast<std::uint64_t>(i)) * 4 - 2);
    copy_to_device(gpu_context(), memory_.get(), pattern.data(), std::min(kPattern, rows * cols) * 2);
    for (std::int64_t done = kPattern; done < rows * cols; done *= 2)
      copy(gpu_context(), static_cast<char*>(memory_.get()) + done * 2, memory_.get(),
           std::min(done, rows * cols - done) * 2);
    synchronize(gpu_context());
  }

 private:
  std::shared_ptr<void> memory_;

 public:
  Tensor tensor;
};

/// The last rows as tensors of their own.
class LastRows {
 public:
  explicit LastRows(const Tensor& all)
      : memory_(allocate(gpu_context().device, kLast * all.cols * dtype_size(all.dtype), "a large test")),
        tensor(tensor_over(memory_.get(), all.dtype, kLast, all.cols)) {
    copy(gpu_context(), memory_.get(), all.row_range(all.rows - kLast, kLast).data, tensor.bytes());
  }

 private:
  std::shared_ptr<void> memory_;

 public:
  Tensor tensor;
};

std::vector<char> bytes_of(const Tensor& t) {
  std::vector<char> bytes(static_cast<std::size_t>(t.bytes()));
  copy_to_host(gpu_context(), bytes.data(), t.data, t.bytes());
  synchronize(gpu_context());
  return bytes;
}

void expect_same(const Tensor& all, const Tensor& alone) {
  EXPECT_TRUE(bytes_of(all.row_range(all.rows - kLast, kLast)) == bytes_of(alone));
}

TEST(GpuLarge, ElementwiseAndColumnSums) {
  TRAINER_REQUIRE_LARGE();
  const Context& ctx = gpu_context();
  const std::int64_t rows = 2200003, cols = 1000;  // 2.2e9
  const Large a(rows, cols);
  const Tensor gap_free = a.tensor, strided = a.tensor.col_range(8, 984);
  for (const Tensor& x : {gap_free, strided}) {
    const LastRows alone(tensor_over(gap_free.data, Dtype::bf16, rows, cols));
    Tensor y = alone.tensor;
    if (x.cols != cols) y = y.col_range(8, 984);
    ops::add(ctx, {.a = x, .b = x, .out = x});
    ops::add(ctx, {.a = y, .b = y, .out = y});
    ops::activation_forward(ctx, {.kind = Activation::gelu_tanh, .x = x, .out = x});
    ops::activation_forward(ctx, {.kind = Activation::gelu_tanh, .x = y, .out = y});
    const std::int64_t before = x.cols == cols ? rows - kLast : 0;
    if (x.cols == cols) {
      ops::dropout(ctx, {.x = x, .out = x, .dropout = {0.5, 9}});
      ops::dropout(ctx, {.x = y, .out = y, .dropout = {0.5, 9}, .row_offset = before});
    }
    expect_same(gap_free, alone.tensor);
  }
  ops::fill(ctx, {.x = gap_free, .value = 0.5});
  const auto sums = allocate(ctx.device, cols * 4, "a large test");
  const Tensor dbias = tensor_over(sums.get(), Dtype::f32, cols, 1);
  ops::bias_backward(ctx, {.dy = gap_free, .dbias = dbias, .accumulate = false});
  std::vector<float> got(static_cast<std::size_t>(cols));
  copy_to_host(ctx, got.data(), dbias.data, dbias.bytes());
  synchronize(ctx);
  for (const float g : got) ASSERT_EQ(g, static_cast<float>(0.5 * static_cast<double>(rows)));
}

TEST(GpuLarge, Norm) {
  TRAINER_REQUIRE_LARGE();
  const Context& ctx = gpu_context();
  const std::int64_t rows = 700001, cols = 3072;  // 2.15e9
  const Large x(rows, cols), out(rows, cols, false);
  const Large weight(1, cols);
  const LastRows x_alone(x.tensor), out_alone(out.tensor);
  const auto floats = allocate(ctx.device, (rows + 2 * cols) * 4, "a large test");
  const Tensor rstd = tensor_over(floats.get(), Dtype::f32, 1, rows);
  const Tensor dweight = tensor_over(static_cast<float*>(floats.get()) + rows, Dtype::f32, cols, 1);
  const auto forward = [&](const Tensor& in, const Tensor& to, const Tensor& stats) {
    ops::add_norm_forward(ctx, {.x = in, .weight = weight.tensor.reshape(cols, 1), .out = to, .rstd = stats});
  };
  const Tensor rstd_alone = tensor_over(static_cast<float*>(floats.get()) + rows + cols, Dtype::f32, 1, kLast);
  forward(x.tensor, out.tensor, rstd);
  forward(x_alone.tensor, out_alone.tensor, rstd_alone);
  expect_same(out.tensor, out_alone.tensor);
  const auto backward = [&](const Tensor& d, const Tensor& sum, const Tensor& stats) {
    ops::norm_backward(ctx, {.kind = NormKind::rmsnorm,
                             .dout = d,
                             .sum = sum,
                             .weight = weight.tensor.reshape(cols, 1),
                             .rstd = stats,
                             .dx = d,
                             .dweight = dweight,
                             .accumulate = false});
  };
  backward(out.tensor, x.tensor, rstd);
  backward(out_alone.tensor, x_alone.tensor, rstd_alone);
  expect_same(out.tensor, out_alone.tensor);
}

TEST(GpuLarge, CrossEntropy) {
  TRAINER_REQUIRE_LARGE();
  const Context& ctx = gpu_context();
  const std::int64_t rows = 17003, cols = 128256;  // 2.18e9
  const Large logits(rows, cols);
  const LastRows alone(logits.tensor);
  const auto memory = allocate(ctx.device, rows * 16 + kLast * 12 + 64, "a large test");
  auto* base = static_cast<char*>(memory.get());
  const Tensor targets = tensor_over(base + 64, Dtype::i32, 1, rows);  // all 0
  const Tensor sums = tensor_over(base, Dtype::f64, 1, 3);
  const auto run = [&](const Tensor& l, const Tensor& t, void* stats_memory) {
    const Tensor stats = tensor_over(stats_memory, Dtype::f32, l.rows, 3);
    ops::cross_entropy_stats(ctx, {.logits = l, .targets = t, .stats = stats, .valid_cols = cols});
    ops::cross_entropy_finish(
        ctx, {.logits = l, .targets = t, .stats = stats, .sums = sums, .valid_cols = cols, .grad_scale = 16.0});
  };
  run(logits.tensor, targets, base + 64 + rows * 4);
  run(alone.tensor, targets.col_range(0, kLast), base + 64 + rows * 16);
  expect_same(logits.tensor, alone.tensor);
}

TEST(GpuLarge, EmbeddingGradient) {
  TRAINER_REQUIRE_LARGE();
  const Context& ctx = gpu_context();
  const std::int64_t tokens = 64, table = 151936, width = 16384;  // 2.49e9
  const Large dout(tokens, width);
  const auto memory = allocate(ctx.device, table * width * 4 + tokens * 4, "a large test");
  const Tensor dweight = tensor_over(memory.get(), Dtype::f32, table, width);
  const Tensor ids = tensor_over(static_cast<char*>(memory.get()) + table * width * 4, Dtype::i32, 1, tokens);
  std::vector<std::int32_t> host_ids(tokens, static_cast<std::int32_t>(table - 1));
  host_ids[7] = 5;
  copy_to_device(ctx, ids.data, host_ids.data(), tokens * 4);
  ops::fill(ctx, {.x = dweight, .value = 7.0});
  ops::embedding_backward(ctx, {.ids = ids, .dout = dout.tensor, .dweight = dweight, .accumulate = false});
  std::vector<float> last(width), before_last(width), five(width);
  std::vector<Bfloat16> d(static_cast<std::size_t>(tokens * width));
  copy_to_host(ctx, last.data(), dweight.row_range(table - 1, 1).data, width * 4);
  copy_to_host(ctx, before_last.data(), dweight.row_range(table - 2, 1).data, width * 4);
  copy_to_host(ctx, five.data(), dweight.row_range(5, 1).data, width * 4);
  copy_to_host(ctx, d.data(), dout.tensor.data, tokens * width * 2);
  synchronize(ctx);
  for (std::int64_t c = 0; c < width; ++c) {
    double sum = 0;
    for (std::int64_t n = 0; n < tokens; ++n)
      if (n != 7) sum += static_cast<float>(d[static_cast<std::size_t>(n * width + c)]);
    const auto i = static_cast<std::size_t>(c);
    ASSERT_NEAR(last[i], sum, 1e-4);
    ASSERT_EQ(before_last[i], 0.0f);
    ASSERT_EQ(five[i], static_cast<float>(d[static_cast<std::size_t>(7 * width + c)]));
  }
}

std::vector<float> numbers_of(const Tensor& t) {
  const std::vector<char> bytes = bytes_of(t);
  std::vector<Bfloat16> elements(static_cast<std::size_t>(t.numel()));
  std::memcpy(elements.data(), bytes.data(), bytes.size());
  return std::vector<float>(elements.begin(), elements.end());
}

/// cuDNN over all documents against our own attention over the last one alone: not the same bits.
TEST(GpuLarge, CudnnFindsTheLastDocument) {
  TRAINER_REQUIRE_LARGE();
  constexpr std::int64_t kHeads = 32, kHeadDim = 128, kWidth = kHeads * kHeadDim;
  constexpr std::int64_t kDocuments = 360, kLength = 500, kRows = kDocuments * kLength + kLast;  // qkv: 2.2e9
  const Large qkv(kRows, 3 * kWidth), dqkv(kRows, 3 * kWidth, false), out(kRows, kWidth, false), dout(kRows, kWidth);
  const LastRows qkv_alone(qkv.tensor), dqkv_alone(dqkv.tensor), out_alone(out.tensor), dout_alone(dout.tensor);
  const auto lse = allocate(gpu_context().device, kRows * kHeads * 4, "a large test");
  std::vector<std::int32_t> starts;
  for (std::int64_t d = 0; d <= kDocuments; ++d) starts.push_back(static_cast<std::int32_t>(d * kLength));
  starts.push_back(static_cast<std::int32_t>(kRows));
  const std::vector<std::int32_t> start_alone = {0, kLast};

  const auto run = [&](AttentionChoice choice, const std::vector<std::int32_t>& documents, const Tensor& from,
                       const Tensor& gradient, const Tensor& result, const Tensor& result_gradient) {
    Context ctx = gpu_context();
    ctx.deterministic = false;
    ctx.attention = choice;
    const std::int64_t count = std::ssize(documents);
    const auto memory = allocate(ctx.device, count * 4, "a large test");
    copy_to_device(ctx, memory.get(), documents.data(), count * 4);
    const Tensor where = tensor_over(memory.get(), Dtype::i32, 1, count);
    const auto part = [](const Tensor& all, std::int64_t i) { return all.col_range(i * kWidth, kWidth); };
    const ops::AttentionBackwardArgs args = {.shape = {.heads = kHeads,
                                                       .kv_heads = kHeads,
                                                       .head_dim = kHeadDim,
                                                       .scale = 1 / std::sqrt(static_cast<double>(kHeadDim)),
                                                       .max_seq = count > 2 ? kLength : kLast,
                                                       .total_heads = kHeads},
                                             .q = part(from, 0),
                                             .k = part(from, 1),
                                             .v = part(from, 2),
                                             .q_starts = where,
                                             .kv_starts = where,
                                             .out = result,
                                             .lse = tensor_over(lse.get(), Dtype::f32, 1, from.rows * kHeads),
                                             .dout = result_gradient,
                                             .dq = part(gradient, 0),
                                             .dk = part(gradient, 1),
                                             .dv = part(gradient, 2)};
    if (choice == AttentionChoice::cudnn &&
        !ops::cuda::cudnn_attention_fits(ctx, args.shape, args.q, args.k, where, where))
      return false;
    ops::attention_forward(ctx, forward_of(args));
    ops::attention_backward(ctx, args);
    synchronize(ctx);
    return true;
  };
  if (!run(AttentionChoice::cudnn, starts, qkv.tensor, dqkv.tensor, out.tensor, dout.tensor))
    GTEST_SKIP() << "no cuDNN attention for documents on this card or in this build";
  run(AttentionChoice::builtin, start_alone, qkv_alone.tensor, dqkv_alone.tensor, out_alone.tensor, dout_alone.tensor);
  for (const auto& [all, alone] : {std::pair{out.tensor, out_alone.tensor}, {dqkv.tensor, dqkv_alone.tensor}}) {
    const std::vector<float> got = numbers_of(all.row_range(kRows - kLast, kLast)), expected = numbers_of(alone);
    double difference = 0, size = 0;
    for (std::size_t i = 0; i < got.size(); ++i) {
      difference += std::pow(static_cast<double>(got[i] - expected[i]), 2);
      size += std::pow(static_cast<double>(expected[i]), 2);
    }
    EXPECT_GT(size, 0);
    EXPECT_LE(std::sqrt(difference / size), 0x1p-6);
  }
}

}  // namespace
}  // namespace trainer::testing
