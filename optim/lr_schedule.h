// The learning rate as a closed form of the step: the host knows it without asking anybody, in every layout and after
// every resume.
#pragma once
#include <cstdint>

#include "core/config/config.h"

namespace trainer {

/// The learning rate of step k = `step` (counted from 0) of a run of N = `total_steps`.
///
/// Warm-up, k < W = warmup_steps:  peak x (k + 1) / W, so that step W - 1 has the peak.
/// Afterwards, with r = min_lr_ratio and progress p in [0, 1]:
///   constant      peak
///   linear        peak x (1 - (1 - r) p)                       p = (k - W) / (E - W)
///   cosine        peak x (r + (1 - r) (1 + cos(pi p)) / 2)     p = (k - W) / (E - W)
///   wsd           peak x (1 - (1 - r) p)                       p = (k - S + 1) / (N - S), S = max(N - decay_steps, W)
///   inverse_sqrt  peak x max(r, sqrt(max(W, 1) / (k + 1)))
/// E is decay_steps, or N - 1 when that is 0: the minimum is reached at step E and kept. The first step after the
/// warm-up has the peak even where there is no room for a decay (E <= W), so a run of one step learns. wsd is constant
/// before step S, the last decay_steps steps go down, and the last of them has the minimum; with decay_steps 0 it is
/// constant to the end. constant does not use min_lr_ratio.
double learning_rate(const LrSchedulerConfig& config, double peak_lr, std::int64_t step, std::int64_t total_steps);

}  // namespace trainer
