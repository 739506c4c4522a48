#include <gtest/gtest.h>
#include <omp.h>

#include <cmath>
#include <limits>

#include "tests/optim/host_shard.h"

namespace trainer::test {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

/// A norm [1, 2] at the start of a step.
struct Norm {
  double values[2] = {0.0, kInf};
  Tensor tensor() { return tensor_over(values, Dtype::f64, 1, 2); }
};

template <class T>
Tensor over(std::vector<T>& x) {
  return tensor_over(x.data(), DtypeOf<T>::value, 1, static_cast<std::int64_t>(x.size()));
}

/// One tensor in a call of its own.
template <class T>
void square(std::vector<T>& x, Norm& norm, std::int64_t index, bool counted = true) {
  const Tensor tensor = over(x);
  ops::squared_norm(Context{}, {tensor, {{0, tensor.cols, index, counted}}, norm.tensor()});
}

TEST(SquaredNorm, SumsSquaresOfAllElements) {
  // 1^2 + ... + n^2 = n (n + 1) (2 n + 1) / 6 is exact in float64.
  for (const std::int64_t n : {1, 63, 64, 65, 100'000}) {
    std::vector<float> single;
    std::vector<double> wide;
    for (std::int64_t i = 1; i <= n; ++i) {
      single.push_back(static_cast<float>(i));
      wide.push_back(static_cast<double>(-i));
    }
    Norm norm;
    square(single, norm, 3);
    square(wide, norm, 4);
    const std::int64_t squares = n * (n + 1) * (2 * n + 1) / 6;
    EXPECT_EQ(norm.values[0], 2.0 * static_cast<double>(squares));
    EXPECT_EQ(norm.values[1], kInf);
  }
}

TEST(SquaredNorm, HasTheSameBitsWithAnyNumberOfThreads) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "the OpenMP runtime is not instrumented: its barriers look like races";
#endif
  std::vector<float> x;
  for (const double value : normals(1, 0, 200'001)) x.push_back(static_cast<float>(value));
  const int threads = omp_get_max_threads();
  Norm one, many;
  omp_set_num_threads(1);
  square(x, one, 0);
  omp_set_num_threads(3);
  square(x, many, 0);
  omp_set_num_threads(threads);
  EXPECT_EQ(one.values[0], many.values[0]);
}

TEST(SquaredNorm, NamesTheFirstNonFiniteTensor) {
  std::vector<float> good(1000, 1.0f), inf = good, nan = good;
  inf[999] = -INFINITY;
  nan[0] = NAN;
  Norm norm;
  square(good, norm, 2);
  EXPECT_EQ(norm.values[1], kInf);
  square(inf, norm, 9);
  EXPECT_EQ(norm.values[1], 9.0);
  square(nan, norm, 5);
  square(inf, norm, 7);
  EXPECT_EQ(norm.values[1], 5.0);
}

TEST(SquaredNorm, CopiesOnlyLook) {
  std::vector<float> x(10, 3.0f);
  Norm norm;
  square(x, norm, 1, false);
  EXPECT_EQ(norm.values[0], 0.0);
  x[4] = NAN;
  square(x, norm, 1, false);
  EXPECT_EQ(norm.values[0], 0.0);
  EXPECT_EQ(norm.values[1], 1.0);
}

TEST(SquaredNorm, RunsOfAShardAreWhatTheirTensorsWouldBe) {
  std::vector<float> x(1000, 2.0f);
  x[5] = NAN;    // in no run
  x[700] = NAN;  // in the run that is not counted
  Norm norm;
  ops::squared_norm(Context{}, {over(x), {{0, 5, 1}, {6, 94, 2}, {200, 0, 3}, {600, 200, 4, false}}, norm.tensor()});
  EXPECT_EQ(norm.values[0], 4.0 * 99);
  EXPECT_EQ(norm.values[1], 4.0);
  x[99] = INFINITY;  // the last element of run 2
  ops::squared_norm(Context{}, {over(x), {{600, 200, 4, false}, {6, 94, 2}}, norm.tensor()});
  EXPECT_EQ(norm.values[1], 2.0);
}

TEST(SquaredNorm, FiniteFloatsNeverOverflow) {
  std::vector<float> single(1000, std::numeric_limits<float>::max());
  Norm norm;
  square(single, norm, 0);
  EXPECT_TRUE(std::isfinite(norm.values[0]));
  std::vector<double> wide(2, 1e200);  // these do, and no element is to blame
  square(wide, norm, 1);
  EXPECT_EQ(norm.values[0], kInf);
  EXPECT_EQ(norm.values[1], kInf);
}

struct Step {
  double squares = 25.0;
  double first_bad = kInf;
  double tokens = 100.0;
};

/// One prepare_update with the loss gradients made for 128 tokens.
void prepare(UpdateState& state, const Step& step, double clip, bool scaling = false, LossScaleConfig scale = {}) {
  double norm[] = {step.squares, step.first_bad};
  double sums[] = {250.0, 2.5, step.tokens};
  ops::prepare_update(Context{}, {.state = &state,
                                  .norm = tensor_over(norm, Dtype::f64, 1, 2),
                                  .sums = tensor_over(sums, Dtype::f64, 1, 3),
                                  .grad_scale = 1.0 / 128.0,
                                  .clip_grad_norm = clip,
                                  .scaling = scaling,
                                  .scale = scale});
}

TEST(PrepareUpdate, UnscalesByLossScaleAndRealTokenCount) {
  UpdateState state;
  state.loss_scale = 8.0;
  prepare(state, {}, 0.0, true);
  // stored = true x 8 x 100 / 128
  EXPECT_DOUBLE_EQ(state.grad_factor, 128.0 / 800.0);
  EXPECT_DOUBLE_EQ(state.grad_norm, 5.0 * 128.0 / 800.0);
  EXPECT_EQ(state.loss_sum, 250.0);
  EXPECT_EQ(state.z_loss_sum, 2.5);
  EXPECT_EQ(state.target_tokens, 100.0);
  EXPECT_EQ(state.first_bad, kNoBadTensor);
  EXPECT_EQ(state.updates, 1);
  EXPECT_EQ(state.skipped, 0);
}

TEST(PrepareUpdate, ClipsAsTorch) {
  UpdateState state;
  prepare(state, {.squares = 25.0, .tokens = 128.0}, 1.0);
  EXPECT_DOUBLE_EQ(state.grad_norm, 5.0);
  EXPECT_DOUBLE_EQ(state.grad_factor, 1.0 / (5.0 + 1e-6));
  prepare(state, {.squares = 0.25, .tokens = 128.0}, 1.0);
  EXPECT_DOUBLE_EQ(state.grad_norm, 0.5);
  EXPECT_DOUBLE_EQ(state.grad_factor, 1.0) << "small gradients are left alone";
  prepare(state, {.squares = 0.0, .tokens = 128.0}, 1.0);
  EXPECT_DOUBLE_EQ(state.grad_factor, 1.0);
  prepare(state, {.squares = 25.0, .tokens = 128.0}, 0.0);
  EXPECT_DOUBLE_EQ(state.grad_factor, 1.0) << "0 is off";
}

TEST(PrepareUpdate, SkipsNonFiniteGradientsWithoutAScalerToo) {
  UpdateState state;
  prepare(state, {}, 1.0);
  prepare(state, {.squares = NAN, .first_bad = 4}, 1.0);
  EXPECT_EQ(state.skipped, 1);
  EXPECT_EQ(state.first_bad, 4);
  EXPECT_EQ(state.updates, 1);
  EXPECT_EQ(state.consecutive_skips, 1);
  EXPECT_EQ(state.loss_scale, 1.0);
  EXPECT_EQ(state.scale_at_floor, 0) << "there is no scaler";
  prepare(state, {.squares = 9.0, .first_bad = 0}, 1.0);  // found by a copy that does not count for the norm
  EXPECT_EQ(state.skipped, 1);
  EXPECT_EQ(state.first_bad, 0);
  EXPECT_EQ(state.consecutive_skips, 2);
  prepare(state, {.squares = kInf}, 1.0);  // a float64 sum that overflowed
  EXPECT_EQ(state.skipped, 1);
  EXPECT_EQ(state.first_bad, kNoBadTensor);
  prepare(state, {}, 1.0);
  EXPECT_EQ(state.skipped, 0);
  EXPECT_EQ(state.updates, 2);
  EXPECT_EQ(state.consecutive_skips, 0);
}

TEST(PrepareUpdate, SkipsABatchWithoutTargetsAndLeavesTheScalerAlone) {
  UpdateState state;
  state.loss_scale = 64.0;
  state.growth_tracker = 1;
  prepare(state, {.squares = 0.0, .tokens = 0.0}, 1.0, true, {.growth_interval = 2});
  EXPECT_EQ(state.skipped, 1);
  EXPECT_EQ(state.consecutive_skips, 1);
  EXPECT_EQ(state.updates, 0);
  EXPECT_EQ(state.grad_norm, 0.0);
  EXPECT_EQ(state.loss_scale, 64.0);
  EXPECT_EQ(state.growth_tracker, 1);
}

TEST(LossScale, FollowsTheWrittenSequence) {
  const LossScaleConfig config{.init_scale = 8,
                               .growth_factor = 2,
                               .backoff_factor = 0.5,
                               .growth_interval = 3,
                               .hysteresis = 2,
                               .min_scale = 2};
  UpdateState state;
  state.loss_scale = config.init_scale;
  state.hysteresis_left = config.hysteresis;
  struct Expected {
    bool finite;
    double scale;
    std::int64_t tracker, hysteresis, at_floor;
  };
  const Expected sequence[] = {
      {true, 8, 1, 2, 0},   {true, 8, 2, 2, 0},  {true, 16, 0, 2, 0},  // three finite steps: grows
      {false, 16, 0, 1, 0},                                            // forgiven
      {true, 16, 1, 1, 0},  {true, 16, 2, 1, 0},                       // not refilled by finite steps alone
      {false, 8, 0, 0, 0},  {false, 4, 0, 0, 0}, {false, 2, 0, 0, 0},  // backs off each time
      {false, 2, 0, 0, 1},                                             // nowhere to go
      {true, 2, 1, 0, 0},   {true, 2, 2, 0, 0},  {true, 4, 0, 2, 0},   // grows and refills
      {false, 4, 0, 1, 0},  {false, 2, 0, 0, 0},
  };
  int number = 0;
  std::int64_t updates = 0;
  for (const Expected& expected : sequence) {
    const double scale_before = state.loss_scale;
    prepare(state, expected.finite ? Step{} : Step{.squares = kInf, .first_bad = 1}, 0.0, true, config);
    updates += expected.finite ? 1 : 0;
    EXPECT_EQ(state.loss_scale, expected.scale) << number;
    EXPECT_EQ(state.growth_tracker, expected.tracker) << number;
    EXPECT_EQ(state.hysteresis_left, expected.hysteresis) << number;
    EXPECT_EQ(state.scale_at_floor, expected.at_floor) << number;
    EXPECT_EQ(state.skipped, expected.finite ? 0 : 1) << number;
    EXPECT_EQ(state.updates, updates) << number;
    // The gradients of this step were made with the scale from before it.
    EXPECT_DOUBLE_EQ(state.grad_factor, expected.finite ? 128.0 / (scale_before * 100.0) : 0.0) << number;
    ++number;
  }
}

// With hysteresis 1 the rule is PyTorch's: a non-finite step halves at once, growth_interval finite ones double.
TEST(LossScale, WithoutHysteresisIsPyTorchs) {
  const LossScaleConfig config{.growth_interval = 2};
  UpdateState state;
  state.loss_scale = config.init_scale;
  const Step bad{.squares = kInf, .first_bad = 0};
  prepare(state, bad, 0.0, true, config);
  EXPECT_EQ(state.loss_scale, 32768.0);
  prepare(state, {}, 0.0, true, config);
  prepare(state, bad, 0.0, true, config);
  EXPECT_EQ(state.loss_scale, 16384.0);
  prepare(state, {}, 0.0, true, config);
  EXPECT_EQ(state.loss_scale, 16384.0) << "the finite steps were not in a row";
  prepare(state, {}, 0.0, true, config);
  EXPECT_EQ(state.loss_scale, 32768.0);
}

TEST(LossScale, StaysFiniteInFloat32AndAboveTheFloor) {
  UpdateState state;
  state.loss_scale = 0x1p127;
  prepare(state, {}, 0.0, true, {.growth_interval = 1});
  EXPECT_EQ(state.loss_scale, 0x1p127);
  state.loss_scale = 3.0;
  prepare(state, {.squares = kInf, .first_bad = 0}, 0.0, true, {.min_scale = 2.0});
  EXPECT_EQ(state.loss_scale, 2.0);
  EXPECT_EQ(state.scale_at_floor, 0);
}

}  // namespace
}  // namespace trainer::test
