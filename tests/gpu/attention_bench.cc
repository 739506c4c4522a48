// Speed of the attention kernels, in TFLOP/s with the causal half counted: 2 H T^2 D a sequence forward, 2.5 times that
// backward. Only with TRAINER_GPU_BENCH=1.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <numeric>
#include <vector>

#include "core/runtime/median.h"
#include "core/runtime/rng.h"
#include "kernels/cuda/attention_cudnn.h"
#include "kernels/cuda/attention_flash.h"
#include "kernels/cuda/attention_plain.h"
#include "tests/gpu/attention_args.h"
#include "tests/gpu/twin.h"

namespace trainer::testing {
namespace {

struct Shape {
  std::vector<std::int64_t> lengths;  // of the sequences
  std::int64_t heads, kv_heads, head_dim;

  std::int64_t tokens() const { return std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0}); }
  std::int64_t longest() const { return *std::max_element(lengths.begin(), lengths.end()); }
};

/// `parts`, one behind the other, `times` times.
std::vector<std::int64_t> repeated(std::size_t times, const std::vector<std::vector<std::int64_t>>& parts) {
  std::vector<std::int64_t> all;
  for (std::size_t i = 0; i < times; ++i)
    for (const auto& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

/// bf16 tensors of one shape on the card, normal random numbers; q, k and v are views of one buffer.
class Layer {
 public:
  explicit Layer(const Shape& s) : shape_(s) {
    const std::int64_t n = s.tokens(), width = s.heads * s.head_dim, kv_width = s.kv_heads * s.head_dim;
    const Tensor qkv = make(Dtype::bf16, n, width + 2 * kv_width), dqkv = make(Dtype::bf16, n, width + 2 * kv_width);
    const Tensor starts = make(Dtype::i32, 1, std::ssize(s.lengths) + 1);
    std::vector<std::int32_t> host{0};
    for (const std::int64_t length : s.lengths) host.push_back(host.back() + static_cast<std::int32_t>(length));
    copy_to_device(gpu_context(), starts.data, host.data(), starts.bytes());
    backward = {.shape = {.heads = s.heads,
                          .kv_heads = s.kv_heads,
                          .head_dim = s.head_dim,
                          .scale = 1 / std::sqrt(static_cast<double>(s.head_dim)),
                          .max_seq = s.longest(),
                          .total_heads = s.heads},
                .q = qkv.col_range(0, width),
                .k = qkv.col_range(width, kv_width),
                .v = qkv.col_range(width + kv_width, kv_width),
                .q_starts = starts,
                .kv_starts = starts,
                .out = make(Dtype::bf16, n, width),
                .lse = make(Dtype::f32, 1, n * s.heads),
                .dout = make(Dtype::bf16, n, width),
                .dq = dqkv.col_range(0, width),
                .dk = dqkv.col_range(width, kv_width),
                .dv = dqkv.col_range(width + kv_width, kv_width)};
    forward = forward_of(backward);
    randomise(qkv, 1);
    randomise(backward.dout, 2);
    synchronize(gpu_context());
  }

  double forward_flops() const {
    double pairs = 0;
    for (const std::int64_t length : shape_.lengths) pairs += static_cast<double>(length * length);
    return 2.0 * static_cast<double>(shape_.heads * shape_.head_dim) * pairs;
  }

  ops::AttentionForwardArgs forward;
  ops::AttentionBackwardArgs backward;

 private:
  Tensor make(Dtype dtype, std::int64_t rows, std::int64_t cols) {
    memory_.push_back(allocate(gpu_context().device, rows * cols * dtype_size(dtype), "a benchmark"));
    return {memory_.back().get(), dtype, rows, cols, cols};
  }
  /// A million numbers over and over.
  void randomise(const Tensor& tensor, std::uint64_t key) {
    std::vector<Bfloat16> pattern(std::size_t{1} << 20);
    for (std::size_t i = 0; i < pattern.size(); ++i) pattern[i] = Bfloat16(static_cast<float>(normal_at(key, i)));
    const auto period = static_cast<std::int64_t>(pattern.size() * sizeof(Bfloat16));
    for (std::int64_t done = 0; done < tensor.bytes(); done += period)
      copy_to_device(gpu_context(), static_cast<char*>(tensor.data) + done, pattern.data(),
                     std::min(period, tensor.bytes() - done));
    synchronize(gpu_context());
  }

  Shape shape_;
  std::vector<std::shared_ptr<void>> memory_;
};

/// Median time of a call. Its tensors are larger than the cache, or stay there in training, too.
template <class Call>
double median_ms(const Call& call) {
  constexpr int kRuns = 15;
  const Context& ctx = gpu_context();
  for (int i = 0; i < 3; ++i) call();
  std::vector<Event> marks;
  for (int i = 0; i <= kRuns; ++i) {
    marks.emplace_back(ctx.device);
    marks.back().record(ctx);
    if (i < kRuns) call();
  }
  synchronize(ctx);
  std::vector<double> times;
  for (std::size_t i = 0; i < kRuns; ++i) times.push_back(marks[i + 1].milliseconds_since(marks[i]));
  return median(times);
}

constexpr double kMostTflops = 5000;  // in 16 bits, of any card

template <class Forward, class Backward>
void print_row(const Shape& s, const char* name, double flops, const Forward& forward, const Backward& backward) {
  const double forward_ms = median_ms(forward), backward_ms = median_ms(backward);
  EXPECT_LT(flops / forward_ms / 1e9, kMostTflops) << name << ": too fast to have been computed";
  EXPECT_LT(2.5 * flops / backward_ms / 1e9, kMostTflops) << name << ": too fast to have been computed";
  fmt::print("{:>4} {:>5} {:>3} {:>3} {:>4}  {:<22}{:>9.3f} ms{:>9.1f} TFLOP/s{:>9.3f} ms{:>9.1f} TFLOP/s\n",
             s.lengths.size(), s.longest(), s.heads, s.kv_heads, s.head_dim, name, forward_ms, flops / forward_ms / 1e9,
             backward_ms, 2.5 * flops / backward_ms / 1e9);
}

void print_head() {
  fmt::print("   B     T   H   K    D  {:<22}{:>24}{:>24}\n", "", "forward", "backward");
}

/// cuDNN's row, where it serves the layer.
void print_cudnn(const Shape& s, const Layer& layer, bool deterministic) {
  Context ctx = gpu_context();
  ctx.deterministic = deterministic;
  const ops::AttentionForwardArgs& args = layer.forward;
  if (!ops::cuda::cudnn_attention_fits(ctx, args.shape, args.q, args.k, args.q_starts, args.kv_starts)) return;
  print_row(
      s, deterministic ? "cuDNN, deterministic" : "cuDNN", layer.forward_flops(),
      [&] { ops::cuda::cudnn_attention_forward(ctx, layer.forward); },
      [&] { ops::cuda::cudnn_attention_backward(ctx, layer.backward); });
}

void print_builtin(const Shape& s, const Layer& layer, const char* name) {
  print_row(
      s, name, layer.forward_flops(), [&] { ops::cuda::flash_attention_forward(gpu_context(), layer.forward); },
      [&] { ops::cuda::flash_attention_backward(gpu_context(), layer.backward); });
}

TEST(GpuAttentionBench, Table) {
  TRAINER_REQUIRE_GPU();
  if (std::getenv("TRAINER_GPU_BENCH") == nullptr) GTEST_SKIP() << "only with TRAINER_GPU_BENCH=1";
  print_head();
  for (const Shape& s : {Shape{repeated(16, {{1024}}), 12, 12, 64}, Shape{repeated(4, {{4096}}), 32, 8, 64},
                         Shape{repeated(4, {{4096}}), 24, 8, 128}, Shape{repeated(2, {{4096}}), 16, 2, 128}}) {
    Layer layer(s);
    for (const bool deterministic : {true, false}) print_cudnn(s, layer, deterministic);
    for (const double dropout : {0.0, 0.1}) {
      layer.forward.shape.dropout = layer.backward.shape.dropout = {.p = dropout, .key = 7};
      print_builtin(s, layer, dropout > 0 ? "builtin, dropout 0.1" : "builtin");
    }
    if (s.head_dim == 64 && s.longest() == 1024) {
      layer.forward.shape.dropout = layer.backward.shape.dropout = {};
      print_row(
          s, "plain", layer.forward_flops(), [&] { ops::cuda::plain_attention_forward(gpu_context(), layer.forward); },
          [&] { ops::cuda::plain_attention_backward(gpu_context(), layer.backward); });
    }
  }
}

/// Rows of 8192 tokens: documents around 500, then half of each row one of 4096; of one row and of four.
TEST(GpuAttentionBench, Documents) {
  TRAINER_REQUIRE_GPU();
  if (std::getenv("TRAINER_GPU_BENCH") == nullptr) GTEST_SKIP() << "only with TRAINER_GPU_BENCH=1";
  const std::vector<std::int64_t> around_500 = {512, 300, 700, 450, 620, 390, 555, 569};  // 4096 together
  print_head();
  for (const auto& row : {repeated(2, {around_500}), repeated(1, {around_500, {4096}})})
    for (const std::size_t rows : {1, 4}) {
      const Shape s{repeated(rows, {row}), 32, 8, 128};
      const Layer layer(s);
      print_cudnn(s, layer, /*deterministic=*/false);
      print_builtin(s, layer, "builtin");
    }
}

}  // namespace
}  // namespace trainer::testing
