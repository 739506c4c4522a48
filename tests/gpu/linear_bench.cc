// What riding in the GEMM brings: each linear layer of a block alone, with bias, activation function, residual stream
// or bias gradient in its op, and with ops of their own for them. Algorithms, and whether the op is one GEMM or a GEMM
// and a kernel, are chosen by timing as before a run. Only with TRAINER_GPU_BENCH=1.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "core/runtime/rng.h"
#include "kernels/gemm_choices.h"
#include "tests/gpu/twin.h"

namespace trainer::testing {
namespace {

struct Block {
  const char* name;
  std::int64_t tokens, hidden, mlp;
};
constexpr Block kBlocks[] = {
    {"gpt2-124m", 65536, 768, 3072}, {"gpt2-1.5b", 16384, 1600, 6400}, {"llama-1b", 16384, 2048, 8192}};

/// bf16 and float32 matrices on the card; normal random numbers, because zeros cost less power.
class Matrices {
 public:
  Tensor make(Dtype dtype, std::int64_t rows, std::int64_t cols) {
    const Context& ctx = gpu_context();
    const std::int64_t bytes = rows * cols * dtype_size(dtype);
    memory_.push_back(allocate(ctx.device, bytes, "a benchmark"));
    constexpr std::int64_t kPattern = (std::int64_t{1} << 20) - 16;
    std::vector<Bfloat16> pattern(kPattern);
    for (std::int64_t i = 0; i < kPattern; ++i)
      pattern[static_cast<std::size_t>(i)] = Bfloat16(static_cast<float>(normal_at(3, static_cast<std::uint64_t>(i))));
    auto* at = static_cast<char*>(memory_.back().get());
    copy_to_device(ctx, at, pattern.data(), std::min(bytes, 2 * kPattern));
    for (std::int64_t done = 2 * kPattern; done < bytes; done *= 2)
      copy(ctx, at + done, at, std::min(done, bytes - done));
    synchronize(ctx);
    return tensor_over(at, dtype, rows, cols);
  }

 private:
  std::vector<std::shared_ptr<void>> memory_;
};

double median_us(const std::function<void()>& queue) {
  constexpr int kRuns = 21;
  const Context& ctx = gpu_context();
  set_gemm_tuning(ctx, GemmTuning::time);
  queue();
  set_gemm_tuning(ctx, GemmTuning::off);
  std::vector<Event> marks;
  for (int i = 0; i <= kRuns; ++i) marks.emplace_back(ctx.device);
  for (int i = 0; i < 3; ++i) queue();
  marks[0].record(ctx);
  for (int i = 1; i <= kRuns; ++i) {
    queue();
    marks[static_cast<std::size_t>(i)].record(ctx);
  }
  synchronize(ctx);
  std::vector<double> times;
  for (std::size_t i = 1; i < marks.size(); ++i) times.push_back(1e3 * marks[i].milliseconds_since(marks[i - 1]));
  std::nth_element(times.begin(), times.begin() + kRuns / 2, times.end());
  return times[kRuns / 2];
}

constexpr double kMostTflops = 5000;  // in 16 bits, of any card

/// `rest`: the ops that do what `together` does besides the GEMM `alone`.
void row(const char* name, double flops, const std::function<void()>& alone, const std::function<void()>& together,
         const std::function<void()>& rest) {
  const double alone_us = median_us(alone), together_us = median_us(together);
  const double apart_us = median_us([&] {
    alone();
    rest();
  });
  EXPECT_LT(flops / together_us / 1e6, kMostTflops) << name << ": too fast to have been computed";
  EXPECT_LT(flops / alone_us / 1e6, kMostTflops) << name << ": too fast to have been computed";
  fmt::print("  {:<34}{:>9.1f}{:>11.1f}{:>9.1f} us{:>9.0f} TFLOP/s\n", name, alone_us, together_us, apart_us,
             flops / together_us / 1e6);
}

void time_forward(const Block& b) {
  const Context& ctx = gpu_context();
  const Dtype t = Dtype::bf16;
  Matrices m;
  const Tensor h = m.make(t, b.tokens, b.hidden), up = m.make(t, b.tokens, b.mlp),
               activated = m.make(t, b.tokens, b.mlp);
  const Tensor w = m.make(t, b.mlp, b.hidden), bias = m.make(t, b.mlp, 1), w_down = m.make(t, b.hidden, b.mlp);
  const Tensor residual = m.make(t, b.tokens, b.hidden), sum = m.make(t, b.tokens, b.hidden);
  const double flops = 2.0 * static_cast<double>(b.tokens * b.hidden * b.mlp);
  const Tensor short_bias = bias.flat_range(0, b.hidden);
  row(
      "up, bias + gelu_tanh", flops, [&] { ops::linear_forward(ctx, {.x = h, .w = w, .bias = bias, .y = up}); },
      [&] { ops::linear_forward(ctx, {.x = h, .w = w, .bias = bias, .y = up, .activated = activated}); },
      [&] { ops::activation_forward(ctx, {.kind = Activation::gelu_tanh, .x = up, .out = activated}); });
  row(
      "down, bias + residual", flops, [&] { ops::linear_forward(ctx, {.x = activated, .w = w_down, .y = sum}); },
      [&] {
        ops::linear_forward(ctx, {.x = activated, .w = w_down, .bias = short_bias, .y = sum, .addend = residual});
      },
      [&] {
        ops::add_bias(ctx, {.x = sum, .bias = short_bias});
        ops::add(ctx, {.a = sum, .b = residual, .out = sum});
      });
}

void time_backward(const Block& b) {
  const Context& ctx = gpu_context();
  const Dtype t = Dtype::bf16;
  Matrices m;
  const Tensor d = m.make(t, b.tokens, b.hidden), up = m.make(t, b.tokens, b.mlp), dup = m.make(t, b.tokens, b.mlp);
  const Tensor w_down = m.make(t, b.hidden, b.mlp), dw = m.make(Dtype::f32, b.hidden, b.mlp);
  const Tensor dw_up = m.make(Dtype::f32, b.mlp, b.hidden), dbias = m.make(Dtype::f32, b.mlp, 1);
  const double flops = 2.0 * static_cast<double>(b.tokens * b.hidden * b.mlp);
  const Tensor short_dbias = dbias.flat_range(0, b.hidden);
  row(
      "down, input's gradient x gelu_tanh'", flops,
      [&] { ops::linear_backward_input(ctx, {.dy = d, .w = w_down, .dx = dup}); },
      [&] { ops::linear_backward_input(ctx, {.dy = d, .w = w_down, .dx = dup, .activation_input = up}); },
      [&] { ops::activation_backward(ctx, {.kind = Activation::gelu_tanh, .x = up, .dout = dup, .dx = dup}); });
  const auto weight = [&](const char* name, const Tensor& dy, const Tensor& x, const Tensor& to, const Tensor& sums,
                          bool accumulate) {
    row(
        name, flops, [&] { ops::linear_backward_weight(ctx, {.dy = dy, .x = x, .dw = to, .accumulate = accumulate}); },
        [&] {
          ops::linear_backward_weight(ctx, {.dy = dy, .x = x, .dw = to, .accumulate = accumulate, .dbias = sums});
        },
        [&] { ops::bias_backward(ctx, {.dy = dy, .dbias = sums, .accumulate = accumulate}); });
  };
  weight("down, weight's and bias's gradient", d, up, dw, short_dbias, false);
  weight("up, weight's and bias's gradient", up, d, dw_up, dbias, false);
  weight("up, the same, added to", up, d, dw_up, dbias, true);
}

TEST(GpuLinearBench, Table) {
  TRAINER_REQUIRE_GPU();
  if (std::getenv("TRAINER_GPU_BENCH") == nullptr) GTEST_SKIP() << "only with TRAINER_GPU_BENCH=1";
  fmt::print("  {:<34}{:>9}{:>11}{:>9}\n", "", "alone", "in one op", "apart");
  for (const Block& block : kBlocks) {
    fmt::print("{}\n", block.name);
    time_forward(block);
    time_backward(block);
  }
  fmt::print("{}", gemm_choices(gpu_context()));
}

}  // namespace
}  // namespace trainer::testing
