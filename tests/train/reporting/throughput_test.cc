#include "core/train/reporting/throughput.h"

#include <gtest/gtest.h>

#include "core/runtime/check.h"

namespace trainer {
namespace {

ModelConfig llama_8b() {
  ModelConfig m;
  m.hidden_size = 4096;
  m.num_layers = 32;
  m.num_attention_heads = 32;
  m.num_key_value_heads = 8;
  m.head_dim = 128;
  m.intermediate_size = 14336;
  m.vocab_size = 128256;
  return m;
}

// Llama 3 8B has 8,030,261,248 parameters; without the input embedding (128256 x 4096) and the 65 norms of 4096:
TEST(Throughput, CountsTheMatrixWeightsOfAKnownModel) {
  EXPECT_EQ(matmul_params(llama_8b()), 8030261248 - 128256LL * 4096 - 65LL * 4096);
}

// GPT-2 small: 124,439,808 parameters with a tied head; position table 1024 x 768, 25 norms of 2 x 768, biases of
// (3 + 1 + 4 + 1) x 768 a block are no matrices, the tied embedding counts once as the head.
TEST(Throughput, CountsATiedHeadAndAnMlpWithoutGate) {
  ModelConfig m;
  m.hidden_size = 768;
  m.num_layers = 12;
  m.num_attention_heads = m.num_key_value_heads = 12;
  m.head_dim = 64;
  m.intermediate_size = 3072;
  m.vocab_size = 50257;
  m.activation = Activation::gelu_tanh;
  m.tie_word_embeddings = true;
  EXPECT_EQ(matmul_params(m), 124439808 - 1024 * 768 - 25 * 2 * 768 - 12 * 9 * 768);
}

TEST(Throughput, FlopsFollowTheFormula) {
  const ModelConfig m = llama_8b();
  const double expected = 6.0 * static_cast<double>(matmul_params(m)) + 6.0 * 32 * 8192 * 32 * 128;
  EXPECT_DOUBLE_EQ(model_flops_per_token(m, 8192), expected);
}

// Counted pair by pair: token i attends to min(i + 1, w) tokens, a pair costs 12 FLOPs a layer and channel. The closed
// form leaves out the diagonal, so it agrees up to a share of 1/w.
TEST(Throughput, ASlidingWindowCountsPairsInside) {
  ModelConfig m = llama_8b();
  m.sliding_window = 1024;
  const std::int64_t length = 4096;
  double pairs = 0;
  for (std::int64_t i = 0; i < length; ++i) pairs += static_cast<double>(std::min<std::int64_t>(i + 1, 1024));
  const double attention = model_flops_per_token(m, length) - 6.0 * static_cast<double>(matmul_params(m));
  EXPECT_NEAR(attention / (12.0 * 32 * 32 * 128 * pairs / static_cast<double>(length)), 1.0, 1.0 / 1024);
  m.sliding_window = 100000;
  EXPECT_EQ(model_flops_per_token(m, length), model_flops_per_token(llama_8b(), length));
}

TEST(Throughput, AnUnresolvedModelIsRefused) {
  ModelConfig m = llama_8b();
  m.head_dim = 0;
  EXPECT_THROW(matmul_params(m), Error);
}

TEST(Throughput, KnowsDensePeaksAndNothingElse) {
  EXPECT_EQ(peak_tflops("NVIDIA B200", Dtype::bf16), 2250);
  EXPECT_FALSE(peak_tflops("NVIDIA GB200", Dtype::bf16).has_value());
  EXPECT_EQ(peak_tflops("NVIDIA H200", Dtype::bf16), 989);
  EXPECT_EQ(peak_tflops("NVIDIA H100 80GB HBM3", Dtype::f16), 989);
  EXPECT_EQ(peak_tflops("NVIDIA A100-SXM4-80GB", Dtype::bf16), 312);
  EXPECT_EQ(peak_tflops("Tesla V100-SXM2-32GB", Dtype::f16), 125);
  EXPECT_FALSE(peak_tflops("Tesla V100-SXM2-32GB", Dtype::bf16).has_value());
  EXPECT_FALSE(peak_tflops("NVIDIA H200", Dtype::f32).has_value());
  EXPECT_FALSE(peak_tflops("NVIDIA H200 NVL", Dtype::bf16).has_value());
  EXPECT_FALSE(peak_tflops("NVIDIA H100 PCIe", Dtype::bf16).has_value());
  EXPECT_FALSE(peak_tflops("cpu", Dtype::f32).has_value());
}

ThroughputMeter::Setup setup() {
  ThroughputMeter::Setup s;
  s.tokens_per_step = 1000;
  s.flops_per_token = 2e9;
  s.num_devices = 4;
  s.peak_tflops = 100;
  return s;
}

TEST(Throughput, RateTimesTimeIsTheTokens) {
  ThroughputMeter meter(setup(), 50.0);
  for (int i = 1; i <= 10; ++i) meter.step_done(50.0 + 0.2 * i);
  const auto window = meter.close_window();
  ASSERT_TRUE(window.has_value());
  EXPECT_EQ(window->tokens, 10000);
  EXPECT_DOUBLE_EQ(window->tokens_per_second * window->seconds, 10000);
  EXPECT_NEAR(window->step_ms, 200, 1e-9);
  EXPECT_NEAR(window->tflops, 5000.0 * 2e9 / 4 * 1e-12, 1e-9);
  EXPECT_DOUBLE_EQ(window->mfu.value(), window->tflops / 100);
}

TEST(Throughput, EvaluationAndSavingAreNotTrainingTime) {
  ThroughputMeter meter(setup(), 0.0);
  meter.step_done(1.0);
  meter.pause(1.0);
  meter.resume(31.0);
  meter.step_done(32.0);
  meter.pause(32.0);
  meter.resume(42.0);
  const auto window = meter.close_window();
  ASSERT_TRUE(window.has_value());
  EXPECT_DOUBLE_EQ(window->seconds, 2.0);
  meter.step_done(43.0);
  EXPECT_DOUBLE_EQ(meter.close_window().value().seconds, 1.0);  // pauses belong to one window only
}

/// On a GPU the host looks when the next step runs, or after an evaluation.
TEST(Throughput, AStepLastsUntilItEndedHoweverLateThatIsSaid) {
  ThroughputMeter meter(setup(), 0.0);
  meter.pause(0.0);
  meter.resume(5.0);  // saving before the step
  meter.pause(8.0);
  meter.resume(20.0);  // evaluation after it
  meter.step_done(7.0);
  EXPECT_DOUBLE_EQ(meter.close_window().value().seconds, 2.0);
  meter.step_done(22.0);
  EXPECT_DOUBLE_EQ(meter.close_window().value().seconds, 3.0) << "from 7 to 8 and from 20 to 22";
}

TEST(Throughput, AWindowWithoutStepsGoesOn) {
  ThroughputMeter meter(setup(), 0.0);
  EXPECT_FALSE(meter.close_window().has_value());
  meter.step_done(10.0);
  EXPECT_DOUBLE_EQ(meter.close_window().value().seconds, 10.0);
}

TEST(Throughput, UnknownPeakGivesNoMfu) {
  ThroughputMeter::Setup s = setup();
  s.peak_tflops.reset();
  ThroughputMeter meter(s, 0.0);
  meter.step_done(1.0);
  EXPECT_FALSE(meter.close_window().value().mfu.has_value());
}

}  // namespace
}  // namespace trainer
