#include <gtest/gtest.h>

#include <cmath>

#include "tests/optim/host_shard.h"

namespace trainer::test {
namespace {

constexpr double kLr = 1e-2;

/// torch.optim.SGD with dampening 0, written out for one element.
struct ReferenceSgd {
  double momentum, weight_decay;
  bool nesterov;
  double w, buffer = 0;
  bool first = true;
  void step(double grad) {
    grad += weight_decay * w;
    if (momentum != 0) {
      buffer = first ? grad : momentum * buffer + grad;
      grad = nesterov ? grad + momentum * buffer : buffer;
    }
    first = false;
    w -= kLr * grad;
  }
};

double worst_after_1000_steps(Dtype weight, Dtype moments, double momentum, double weight_decay, bool nesterov) {
  constexpr std::int64_t kN = 64;
  const std::vector<double> start = normals(1, 0, kN);
  HostShard shard(weight, moments, kN);
  shard.write_master(start);
  std::vector<ReferenceSgd> reference;
  reference.reserve(start.size());
  for (const double w : start) reference.push_back({momentum, weight_decay, nesterov, w});
  UpdateState state;
  state.grad_factor = 0.25;
  for (std::int64_t t = 1; t <= 1000; ++t) {
    const std::vector<double> grad = normals(2, static_cast<std::uint64_t>(t), kN);
    shard.write_grad(grad);
    state.updates = t;
    ops::sgd(Context{}, {.shard = shard.tensors(),
                         .runs = {{.count = kN, .weight_decay = weight_decay}},
                         .state = &state,
                         .lr = kLr,
                         .momentum = momentum,
                         .nesterov = nesterov});
    for (std::size_t i = 0; i < grad.size(); ++i) reference[i].step(0.25 * grad[i]);
  }
  const std::vector<double> result = shard.read_master();
  double worst = 0;
  for (std::size_t i = 0; i < result.size(); ++i) worst = std::max(worst, std::abs(result[i] - reference[i].w));
  return worst;
}

constexpr Dtype kNoMoments = Dtype::u8;

TEST(Sgd, Float64FollowsTheReference) {
  EXPECT_LT(worst_after_1000_steps(Dtype::f64, kNoMoments, 0.0, 0.0, false), 1e-13);
  EXPECT_LT(worst_after_1000_steps(Dtype::f64, kNoMoments, 0.0, 0.1, false), 1e-13);
  EXPECT_LT(worst_after_1000_steps(Dtype::f64, Dtype::f64, 0.9, 0.0, false), 1e-13);
  EXPECT_LT(worst_after_1000_steps(Dtype::f64, Dtype::f64, 0.9, 0.1, true), 1e-13);
}

TEST(Sgd, Float32MastersFollowTheReference) {
  for (const Dtype weight : {Dtype::f32, Dtype::bf16, Dtype::f16}) {
    EXPECT_LT(worst_after_1000_steps(weight, kNoMoments, 0.0, 0.1, false), 5e-6) << dtype_name(weight);
    EXPECT_LT(worst_after_1000_steps(weight, Dtype::f32, 0.9, 0.1, false), 2e-5) << dtype_name(weight);
    EXPECT_LT(worst_after_1000_steps(weight, Dtype::f32, 0.9, 0.1, true), 2e-5) << dtype_name(weight);
  }
}

TEST(Sgd, SkippedStepTouchesNothing) {
  for (const Dtype weight : {Dtype::f64, Dtype::f32, Dtype::bf16, Dtype::f16}) {
    HostShard shard(weight, accumulator_dtype(weight), 100);
    shard.write_master(normals(3, 0, 100));
    shard.write_grad(std::vector<double>(100, INFINITY));
    const std::vector<std::byte> before = shard.state_bytes();
    UpdateState state;
    state.updates = 1;
    state.skipped = 1;
    ops::sgd(Context{},
             {.shard = shard.tensors(), .runs = {{.count = 100}}, .state = &state, .lr = kLr, .momentum = 0.9});
    EXPECT_EQ(shard.state_bytes(), before) << dtype_name(weight);
  }
}

TEST(Sgd, ShardsTogetherAreTheWholeBitForBit) {
  constexpr std::int64_t kN = 1003, kCut = 501;
  HostShard whole(Dtype::bf16, Dtype::bf16, kN), pieces(Dtype::bf16, Dtype::bf16, kN);
  UpdateState state;
  for (std::int64_t t = 1; t <= 3; ++t) {
    state.updates = t;
    for (const HostShard* shard : {&whole, &pieces}) shard->write_grad(normals(4, static_cast<std::uint64_t>(t), kN));
    ops::SgdArgs args{.shard = whole.tensors(),
                      .runs = {{.count = kN, .rounding_key = 5}},
                      .state = &state,
                      .lr = kLr,
                      .momentum = 0.9};
    ops::sgd(Context{}, args);
    args.shard = pieces.tensors().flat_range(0, kCut);
    args.runs = {{.count = kCut, .rounding_key = 5}};
    ops::sgd(Context{}, args);
    args.shard = pieces.tensors().flat_range(kCut, kN - kCut);
    args.runs = {{.count = kN - kCut, .rounding_key = 5, .first_index = kCut}};
    ops::sgd(Context{}, args);
  }
  EXPECT_EQ(pieces.state_bytes(), whole.state_bytes());
}

}  // namespace
}  // namespace trainer::test
