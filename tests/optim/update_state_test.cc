#include "optim/update_state.h"

#include <gtest/gtest.h>

#include <string>

namespace trainer::test {
namespace {

ParamLayout two_params() {
  return {{{.name = "model.embed_tokens.weight", .block = 0, .rows = 4, .cols = 2},
           {.name = "model.norm.weight", .block = 1, .dims = 1, .rows = 2}},
          TpPlace{},
          1};
}

/// The message of the error with exit code 6 that check_divergence throws; empty when it throws nothing.
std::string divergence(const Config& config, const UpdateState& state) {
  try {
    check_divergence(config, state, two_params());
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::diverged);
    return error.what();
  }
  return {};
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(UpdateState, StartsWithTheConfiguredScaleInFp16Only) {
  PrecisionConfig precision;
  precision.loss_scale.init_scale = 1024;
  precision.loss_scale.hysteresis = 2;
  precision.dtype = Precision::fp16;
  EXPECT_EQ(initial_update_state(precision).loss_scale, 1024.0);
  EXPECT_EQ(initial_update_state(precision).hysteresis_left, 2);
  EXPECT_EQ(initial_update_state(precision).first_bad, kNoBadTensor);
  precision.dtype = Precision::bf16;
  EXPECT_EQ(initial_update_state(precision).loss_scale, 1.0);
}

TEST(Divergence, HealthyAndSkippedStepsGoOn) {
  Config config;
  config.precision.max_consecutive_skips = 3;
  UpdateState state = initial_update_state(config.precision);
  EXPECT_EQ(divergence(config, state), "");
  state.skipped = 1;
  state.first_bad = 1;
  state.consecutive_skips = 2;
  EXPECT_EQ(divergence(config, state), "");
}

TEST(Divergence, AtTheFloorNamesScaleAndTensor) {
  Config config;
  config.precision.loss_scale.min_scale = 0.25;
  UpdateState state;
  state.loss_scale = 0.25;
  state.skipped = state.scale_at_floor = state.consecutive_skips = 1;
  state.first_bad = 1;
  const std::string message = divergence(config, state);
  EXPECT_TRUE(contains(message, "model.norm.weight")) << message;
  EXPECT_TRUE(contains(message, "loss scale 0.25")) << message;
}

TEST(Divergence, TooManySkipsNameTheReason) {
  Config config;
  config.precision.max_consecutive_skips = 3;
  UpdateState state;
  state.skipped = 1;
  state.consecutive_skips = 3;
  state.first_bad = 0;
  state.target_tokens = 100;
  std::string message = divergence(config, state);
  EXPECT_TRUE(contains(message, "3 steps in a row skipped")) << message;
  EXPECT_TRUE(contains(message, "model.embed_tokens.weight")) << message;
  state.first_bad = kNoBadTensor;
  message = divergence(config, state);
  EXPECT_TRUE(contains(message, "sum of squares")) << message;
  state.target_tokens = 0;
  message = divergence(config, state);
  EXPECT_TRUE(contains(message, "no target token")) << message;
}

}  // namespace
}  // namespace trainer::test
