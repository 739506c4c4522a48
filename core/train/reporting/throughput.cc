#include "core/train/reporting/throughput.h"

#include <algorithm>
#include <utility>

#include "core/runtime/check.h"

namespace trainer {

std::int64_t matmul_params(const ModelConfig& m) {
  TRAINER_CHECK(m.num_key_value_heads > 0 && m.head_dim > 0 && m.intermediate_size > 0,
                "the model configuration is not resolved");
  const std::int64_t query = m.hidden_size * m.num_attention_heads * m.head_dim;
  const std::int64_t key_value = 2 * m.hidden_size * m.num_key_value_heads * m.head_dim;
  const std::int64_t mlp_matrices = m.activation == Activation::swiglu ? 3 : 2;
  const std::int64_t block = 2 * query + key_value + mlp_matrices * m.hidden_size * m.intermediate_size;
  return m.num_layers * block + m.hidden_size * m.vocab_size;
}

double model_flops_per_token(const ModelConfig& m, std::int64_t seq_length) {
  const double length = static_cast<double>(seq_length);
  const double window = m.sliding_window > 0 ? static_cast<double>(std::min(m.sliding_window, seq_length)) : length;
  // Twice the mean number of attended tokens: seq_length when every token attends to all before it.
  const double attended = 2 * window - window * window / length;
  const double attention = static_cast<double>(m.num_layers * m.num_attention_heads * m.head_dim) * attended;
  return 6.0 * (static_cast<double>(matmul_params(m)) + attention);
}

std::optional<double> peak_tflops(std::string_view device_name, Dtype dtype) {
  struct Peak {
    std::string_view name;  // part of the card's name
    double fp16;            // dense tensor-core TFLOP/s from the vendor's data sheets; 0: the type is not supported
    double bf16;
  };
  // The SXM cards. PCIe and NVL cards of the same family run at other clocks and are not in the table.
  // " B200" is the HGX card: a GB200 has another power limit.
  constexpr Peak peaks[] = {{" B200", 2250, 2250},
                            {"H100 80GB HBM3", 989, 989},
                            {"H200", 989, 989},
                            {"A100-SXM", 312, 312},
                            {"V100-SXM", 125, 0}};
  if (device_name.find("NVL") != std::string_view::npos) return std::nullopt;
  for (const Peak& peak : peaks) {
    if (device_name.find(peak.name) == std::string_view::npos) continue;
    const double value = dtype == Dtype::f16 ? peak.fp16 : dtype == Dtype::bf16 ? peak.bf16 : 0;
    return value > 0 ? std::optional(value) : std::nullopt;
  }
  return std::nullopt;
}

void ThroughputMeter::step_done(double end) {
  seconds_ += end - last_end_;
  while (!pauses_.empty() && pauses_.front().from < end) {
    seconds_ -= pauses_.front().to - pauses_.front().from;
    pauses_.erase(pauses_.begin());
  }
  last_end_ = end;
  ++steps_;
}

void ThroughputMeter::pause(double now) {
  TRAINER_CHECK(!paused_, "the throughput meter is paused already");
  paused_ = true;
  pauses_.push_back({now, now});
}

void ThroughputMeter::resume(double now) {
  TRAINER_CHECK(paused_, "the throughput meter is not paused");
  paused_ = false;
  pauses_.back().to = now;
}

std::optional<ThroughputMeter::Window> ThroughputMeter::close_window() {
  TRAINER_CHECK(!paused_, "the throughput meter is paused");
  if (steps_ == 0 || seconds_ <= 0) return std::nullopt;
  Window window;
  window.steps = std::exchange(steps_, 0);
  window.seconds = std::exchange(seconds_, 0.0);
  window.tokens = window.steps * setup_.tokens_per_step;
  window.tokens_per_second = static_cast<double>(window.tokens) / window.seconds;
  window.step_ms = 1e3 * window.seconds / static_cast<double>(window.steps);
  window.tflops = window.tokens_per_second * setup_.flops_per_token / setup_.num_devices * 1e-12;
  if (setup_.peak_tflops) window.mfu = window.tflops / *setup_.peak_tflops;
  return window;
}

}  // namespace trainer
