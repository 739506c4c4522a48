// Tokens a second and model FLOP/s. What is counted is written down here, so that figures can be compared.
#pragma once
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "core/config/config.h"
#include "core/runtime/dtype.h"

namespace trainer {

/// Parameters that take part in a matrix product for every token: the projections of all blocks and the LM head (also
/// when it is tied), not the input embedding, norms or biases. `model` must be resolved (no zero that stands for
/// another size). The vocabulary counts without padding.
std::int64_t matmul_params(const ModelConfig& model);

/// Model FLOPs of one token's forward and backward pass:
///   6 x matmul_params + 6 x num_layers x seq_length x num_attention_heads x head_dim.
/// Causal attention counts at half of seq_length^2; with a sliding window w < seq_length only pairs inside the window
/// count, which replaces seq_length by 2w - w^2 / seq_length. Recomputation does not count.
double model_flops_per_token(const ModelConfig& model, std::int64_t seq_length);

/// Dense peak of one device in TFLOP/s for matrix products in `dtype`; empty for a card or a type that is not in the
/// table (no MFU is printed then). `device_name` is CUDA's name of the card.
std::optional<double> peak_tflops(std::string_view device_name, Dtype dtype);

/// Measures windows of training steps. Time is a monotonic clock in seconds that the caller reads, so that tests can
/// set it.
///
/// Counted are the tokens that the job processes, masked or not: global_batch_size x seq_length a step, whatever the
/// layout (tensor-parallel ranks share tokens and do not multiply them). Time between pause() and resume() (evaluation,
/// saving) is left out. Counting starts at construction, so a resumed run does not credit itself with earlier tokens.
class ThroughputMeter {
 public:
  struct Setup {
    std::int64_t tokens_per_step = 0;
    double flops_per_token = 0;
    int num_devices = 1;                // ranks of the whole job
    std::optional<double> peak_tflops;  // of one device
  };
  struct Window {
    std::int64_t steps = 0;
    std::int64_t tokens = 0;
    double seconds = 0;
    double tokens_per_second = 0;  // of the whole job
    double step_ms = 0;
    double tflops = 0;  // model TFLOP/s of one device
    std::optional<double> mfu;
  };

  ThroughputMeter(const Setup& setup, double now) : setup_(setup), last_end_(now) {}

  /// Forgets everything so far: the first window starts now.
  void restart(double now) { *this = ThroughputMeter(setup_, now); }
  /// A step has ended at `end`: it lasted since the one before ended, or since the start. That may be said late, when
  /// the next one runs already or a pause has followed.
  void step_done(double end);
  void pause(double now);
  void resume(double now);

  /// Of the steps that were done since the last call. Empty when there is none, or no time passed: the window then goes
  /// on.
  std::optional<Window> close_window();

 private:
  struct Pause {
    double from = 0, to = 0;
  };

  Setup setup_;
  double last_end_;            // of a step, or the start
  std::vector<Pause> pauses_;  // that began after last_end_
  bool paused_ = false;        // the last of them has not ended
  std::int64_t steps_ = 0;
  double seconds_ = 0;  // of these steps
};

}  // namespace trainer
