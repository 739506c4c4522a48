#include "optim/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace trainer {
namespace {

/// Where `step` lies between `first` (0) and `last` (1).
double progress(std::int64_t step, std::int64_t first, std::int64_t last) {
  const auto length = static_cast<double>(std::max<std::int64_t>(last - first, 1));
  return std::clamp(static_cast<double>(step - first) / length, 0.0, 1.0);
}

double after_warmup(const LrSchedulerConfig& config, std::int64_t step, std::int64_t total_steps) {
  const std::int64_t warmup = config.warmup_steps;
  const double floor = config.min_lr_ratio;
  const std::int64_t decay_end = config.decay_steps > 0 ? config.decay_steps : total_steps - 1;
  switch (config.name) {
    case ScheduleName::constant:
      break;
    case ScheduleName::linear:
      return 1.0 - (1.0 - floor) * progress(step, warmup, decay_end);
    case ScheduleName::cosine:
      return floor + (1.0 - floor) * 0.5 * (1.0 + std::cos(std::numbers::pi * progress(step, warmup, decay_end)));
    case ScheduleName::wsd: {
      if (config.decay_steps == 0) break;
      const std::int64_t decay_start = std::max(total_steps - config.decay_steps, warmup);
      return 1.0 - (1.0 - floor) * progress(step, decay_start - 1, total_steps - 1);
    }
    case ScheduleName::inverse_sqrt:
      return std::max(
          floor, std::sqrt(static_cast<double>(std::max<std::int64_t>(warmup, 1)) / static_cast<double>(step + 1)));
  }
  return 1.0;
}

}  // namespace

double learning_rate(const LrSchedulerConfig& config, double peak_lr, std::int64_t step, std::int64_t total_steps) {
  if (step < config.warmup_steps)
    return peak_lr * (static_cast<double>(step + 1) / static_cast<double>(config.warmup_steps));
  return peak_lr * after_warmup(config, step, total_steps);
}

}  // namespace trainer
