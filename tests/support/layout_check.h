// One layout of a model over the ranks of a test against one process: the same loss, norm, gradients and weights.
#pragma once
#include <string>
#include <vector>

#include "tests/support/engine_harness.h"

namespace trainer::test {

struct Layout {
  int dp = 1, tp = 1;
  bool sequence_parallel = false;
  int zero_stage = 0, zero_group = 0;
  int accumulation = 1;
  std::string recompute = "none";
  int resident_layers = 0;

  std::vector<std::string> sets() const;
  std::string text() const;
};

/// What is compared.
struct LayoutRun {
  double loss = 0.0, grad_norm = 0.0;  // of the first step
  WholeTensors gradients, weights;
};

struct LayoutTolerance {
  double scalar, relative, absolute;
  bool weights;
};
constexpr LayoutTolerance kFloat64Layout{1e-10, 1e-10, 1e-13, true};
// Adam turns rounding noise of near-zero gradients into full steps: float32 weights are not compared.
constexpr LayoutTolerance kFloat32Layout{1e-5, 1e-5, 1e-7, false};

std::vector<std::string> with(std::vector<std::string> sets, const std::vector<std::string>& more);

/// Of the family qwen2: Qwen2.5-14B with a 64th of its width and 5 of its 48 layers: 40 query heads, 8 key/value heads,
/// biases on q, k and v. The real one is not tied.
std::vector<std::string> narrow_14b(bool tied);

/// Five steps of one process on the device of `ctx`. Communicates with nobody.
LayoutRun run_alone(const Context& ctx, const std::string& family, const std::vector<std::string>& sets);

/// The same steps on the ranks of `world`, whose device is that of `ctx`. Collective; fails the test on all ranks.
void expect_equal_to_alone(const Context& ctx, std::unique_ptr<Communicator> world, const std::string& family,
                           const Layout& layout, const std::vector<std::string>& sets, const LayoutRun& expected,
                           const LayoutTolerance& tolerance);

}  // namespace trainer::test
