#include "optim/lr_schedule.h"

#include <gtest/gtest.h>

#include <vector>

namespace trainer::test {
namespace {

struct Point {
  std::int64_t step;
  double lr;
};

void check(const LrSchedulerConfig& config, double peak, std::int64_t total_steps, const std::vector<Point>& points) {
  for (const Point& point : points)
    EXPECT_NEAR(learning_rate(config, peak, point.step, total_steps), point.lr, 1e-12 * peak) << "step " << point.step;
}

TEST(LrSchedule, Constant) {
  check({.name = ScheduleName::constant}, 3e-4, 10, {{0, 3e-4}, {9, 3e-4}, {1000, 3e-4}});
  check({.name = ScheduleName::constant, .warmup_steps = 4}, 1.0, 10, {{0, 0.25}, {1, 0.5}, {3, 1.0}, {4, 1.0}});
}

// progress of step k: k / 100
TEST(LrSchedule, LinearWithoutWarmup) {
  check({.name = ScheduleName::linear, .min_lr_ratio = 0.1}, 2.0, 101,
        {{0, 2.0}, {50, 1.1}, {99, 2.0 * 0.109}, {100, 0.2}, {500, 0.2}});
}

// The minimum is reached at step decay_steps and kept.
TEST(LrSchedule, LinearToAGivenStep) {
  check({.name = ScheduleName::linear, .warmup_steps = 10, .decay_steps = 20, .min_lr_ratio = 0.0}, 1.0, 1000,
        {{0, 0.1}, {9, 1.0}, {10, 1.0}, {15, 0.5}, {20, 0.0}, {999, 0.0}});
}

// Warm-up 10, cosine to the last of 100 steps: p = (k - 10) / 89.
TEST(LrSchedule, CosineWithWarmup) {
  check({.name = ScheduleName::cosine, .warmup_steps = 10, .min_lr_ratio = 0.1}, 1.0, 100,
        {{0, 0.1}, {4, 0.5}, {9, 1.0}, {10, 1.0}, {11, 0.9997196780178902}, {99, 0.1}, {150, 0.1}});
}

// p = k / 100: cos(pi / 4) = 0.70710678, cos(pi / 2) = 0.
TEST(LrSchedule, CosineAtTheQuarterAndTheHalf) {
  check({.name = ScheduleName::cosine, .min_lr_ratio = 0.1}, 1.0, 101,
        {{0, 1.0}, {25, 0.8681980515339464}, {50, 0.55}, {75, 0.2318019484660536}, {100, 0.1}});
}

// The last 10 of 100 steps go down, the last one has the minimum.
TEST(LrSchedule, WarmupStableDecay) {
  check({.name = ScheduleName::wsd, .warmup_steps = 5, .decay_steps = 10, .min_lr_ratio = 0.0}, 1.0, 100,
        {{0, 0.2}, {4, 1.0}, {5, 1.0}, {89, 1.0}, {90, 0.9}, {94, 0.5}, {99, 0.0}, {200, 0.0}});
  check({.name = ScheduleName::wsd, .decay_steps = 0}, 1.0, 100, {{0, 1.0}, {99, 1.0}});
  // A decay that is longer than the run starts after the warm-up: 4 steps for it.
  check({.name = ScheduleName::wsd, .warmup_steps = 6, .decay_steps = 100, .min_lr_ratio = 0.2}, 1.0, 10,
        {{5, 1.0}, {6, 0.8}, {7, 0.6}, {9, 0.2}});
}

TEST(LrSchedule, InverseSquareRoot) {
  check({.name = ScheduleName::inverse_sqrt, .warmup_steps = 4, .min_lr_ratio = 0.2}, 1.0, 1000,
        {{0, 0.25}, {3, 1.0}, {4, 0.8944271909999159}, {15, 0.5}, {63, 0.25}, {99, 0.2}, {399, 0.2}});
  check({.name = ScheduleName::inverse_sqrt, .min_lr_ratio = 0.0}, 1.0, 1000, {{0, 1.0}, {3, 0.5}, {99, 0.1}});
}

TEST(LrSchedule, ShortRunsLearn) {
  for (const ScheduleName name : {ScheduleName::constant, ScheduleName::linear, ScheduleName::cosine, ScheduleName::wsd,
                                  ScheduleName::inverse_sqrt}) {
    EXPECT_EQ(learning_rate({.name = name, .min_lr_ratio = 0.0}, 1.0, 0, 1), 1.0);
    // A warm-up as long as the run.
    EXPECT_EQ(learning_rate({.name = name, .warmup_steps = 3}, 1.0, 2, 3), 1.0);
    EXPECT_EQ(learning_rate({.name = name, .warmup_steps = 8}, 1.0, 2, 3), 0.375);
  }
}

}  // namespace
}  // namespace trainer::test
