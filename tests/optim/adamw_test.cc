#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "kernels/optimizer_bits.h"
#include "tests/optim/host_shard.h"

namespace trainer::test {
namespace {

constexpr double kLr = 3e-3, kBeta1 = 0.9, kBeta2 = 0.95, kEps = 1e-8, kWeightDecay = 0.1;

ops::AdamWArgs adamw_args(const ops::ShardTensors& shard, const UpdateState& state) {
  return {.shard = shard,
          .runs = {{.count = shard.weight.cols, .weight_decay = kWeightDecay, .rounding_key = 7}},
          .state = &state,
          .lr = kLr,
          .beta1 = kBeta1,
          .beta2 = kBeta2,
          .eps = kEps};
}

/// torch.optim.AdamW, written out for one element.
struct ReferenceAdamW {
  double w, m = 0, v = 0;
  void step(double g, std::int64_t t) {
    w -= kLr * kWeightDecay * w;
    m = kBeta1 * m + (1 - kBeta1) * g;
    v = kBeta2 * v + (1 - kBeta2) * g * g;
    const double m_hat = m / (1 - std::pow(kBeta1, static_cast<double>(t)));
    const double v_hat = v / (1 - std::pow(kBeta2, static_cast<double>(t)));
    w -= kLr * m_hat / (std::sqrt(v_hat) + kEps);
  }
};

/// The largest difference to the reference after 1000 steps.
double worst_after_1000_steps(Dtype weight, Dtype moments) {
  constexpr std::int64_t kN = 64;
  const std::vector<double> start = normals(1, 0, kN);
  HostShard shard(weight, moments, kN);
  shard.write_master(start);
  std::vector<ReferenceAdamW> reference;
  reference.reserve(start.size());
  for (const double w : start) reference.push_back({w});
  UpdateState state;
  for (std::int64_t t = 1; t <= 1000; ++t) {
    const std::vector<double> grad = normals(2, static_cast<std::uint64_t>(t), kN);
    shard.write_grad(grad);
    state.updates = t;
    ops::adamw(Context{}, adamw_args(shard.tensors(), state));
    for (std::size_t i = 0; i < grad.size(); ++i) reference[i].step(grad[i], t);
  }
  const std::vector<double> result = shard.read_master();
  double worst = 0;
  for (std::size_t i = 0; i < result.size(); ++i) worst = std::max(worst, std::abs(result[i] - reference[i].w));
  return worst;
}

TEST(AdamW, Float64FollowsTheReference) {
  EXPECT_LT(worst_after_1000_steps(Dtype::f64, Dtype::f64), 1e-13);
}

// A rounding of a weight between 2 and 4 is off by 7e-8 (standard deviation), 1000 of them by 2.2e-6; 1e-5 is 4.5 times
// that and below what a biased rule leaves (a float32 factor 1 - lr x weight_decay: 2.3e-5).
TEST(AdamW, Float32MastersFollowTheReference) {
  EXPECT_LT(worst_after_1000_steps(Dtype::f32, Dtype::f32), 1e-5);
  EXPECT_LT(worst_after_1000_steps(Dtype::f16, Dtype::f32), 1e-5);
  EXPECT_LT(worst_after_1000_steps(Dtype::bf16, Dtype::f32), 1e-5);
}

// bf16 moments are off by up to 1/256 each step, at random: the updates are right on average.
TEST(AdamW, Bf16MomentsStayNearTheReference) {
  EXPECT_LT(worst_after_1000_steps(Dtype::f32, Dtype::bf16), 5e-3);
}

TEST(AdamW, SplitAndCastMastersHaveTheBitsOfFloat32OnARandomWalk) {
  constexpr std::int64_t kN = 4096;
  HostShard plain(Dtype::f32, Dtype::f32, kN), split(Dtype::bf16, Dtype::f32, kN), cast(Dtype::f16, Dtype::f32, kN);
  const std::vector<double> start = normals(3, 0, kN, 0.02);
  for (const HostShard* shard : {&plain, &split, &cast}) shard->write_master(start);
  UpdateState state;
  state.grad_factor = 0.37;
  for (std::int64_t t = 1; t <= 100; ++t) {
    state.updates = t;
    const std::vector<double> grad = normals(4, static_cast<std::uint64_t>(t), kN);
    for (const HostShard* shard : {&plain, &split, &cast}) {
      shard->write_grad(grad);
      ops::adamw(Context{}, adamw_args(shard->tensors(), state));
    }
    ASSERT_EQ(split.read_master(), plain.read_master()) << "update " << t;
    ASSERT_EQ(cast.read_master(), plain.read_master()) << "update " << t;
  }
  const float* master = plain.tensors().weight.as<float>();
  for (std::int64_t i = 0; i < kN; ++i) {
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(master[i]);
    ASSERT_EQ(split.tensors().weight.as<Bfloat16>()[i].bits, (bits + 0x8000u) >> 16);
    ASSERT_EQ(cast.tensors().weight.as<Float16>()[i].bits, f16_bits_from_float(master[i]));
  }
}

TEST(AdamW, GradFactorScalesTheGradient) {
  constexpr std::int64_t kN = 256;
  HostShard plain(Dtype::f32, Dtype::f32, kN), scaled(Dtype::f32, Dtype::f32, kN);
  std::vector<double> grad = normals(5, 0, kN);
  plain.write_grad(grad);
  for (double& g : grad) g *= 1024.0;
  scaled.write_grad(grad);
  UpdateState state;
  state.updates = 1;
  ops::adamw(Context{}, adamw_args(plain.tensors(), state));
  state.grad_factor = 1.0 / 1024.0;
  ops::adamw(Context{}, adamw_args(scaled.tensors(), state));
  EXPECT_EQ(scaled.state_bytes(), plain.state_bytes());
  EXPECT_LT(plain.read_master()[0] * grad[0], 0.0) << "a weight moves against its gradient";
}

TEST(AdamW, SkippedStepTouchesNothing) {
  for (const Dtype weight : {Dtype::f64, Dtype::f32, Dtype::bf16, Dtype::f16}) {
    HostShard shard(weight, accumulator_dtype(weight), 100);
    shard.write_master(normals(6, 0, 100));
    shard.write_grad(std::vector<double>(100, std::nan("")));
    const std::vector<std::byte> before = shard.state_bytes();
    UpdateState state;
    state.updates = 3;
    state.skipped = 1;
    ops::adamw(Context{}, adamw_args(shard.tensors(), state));
    EXPECT_EQ(shard.state_bytes(), before) << dtype_name(weight);
  }
}

TEST(AdamW, ShardsTogetherAreTheWholeBitForBit) {
  constexpr std::int64_t kN = 100'003, kCuts[] = {0, 1, 40'000, 40'007, kN};
  for (const Dtype weight : {Dtype::f64, Dtype::f32, Dtype::bf16, Dtype::f16}) {
    for (const Dtype moments : {Dtype::f32, Dtype::bf16}) {
      HostShard whole(weight, moments, kN), pieces(weight, moments, kN);
      for (const HostShard* shard : {&whole, &pieces}) shard->write_master(normals(7, 0, kN));
      UpdateState state;
      for (std::int64_t t = 1; t <= 3; ++t) {
        state.updates = t;
        const std::vector<double> grad = normals(8, static_cast<std::uint64_t>(t), kN);
        whole.write_grad(grad);
        pieces.write_grad(grad);
        ops::AdamWArgs args = adamw_args(whole.tensors(), state);
        args.runs.runs[0].first_index = 11;
        ops::adamw(Context{}, args);
        for (std::size_t cut = 0; cut + 1 < std::size(kCuts); ++cut) {
          args.shard = pieces.tensors().flat_range(kCuts[cut], kCuts[cut + 1] - kCuts[cut]);
          args.runs.runs[0].count = args.shard.weight.cols;
          args.runs.runs[0].first_index = 11 + kCuts[cut];
          ops::adamw(Context{}, args);
        }
      }
      EXPECT_EQ(pieces.state_bytes(), whole.state_bytes()) << dtype_name(weight) << ", " << dtype_name(moments);
    }
  }
}

// Two parameters with different decays and a gap between them, and a third of which this rank has some columns.
TEST(AdamW, RunsOfAShardAreUpdatedAsTheirParametersWouldBe) {
  constexpr std::int64_t kN = 1000, kCols = 7, kGlobalCols = 21, kRows = 20;
  const ops::UpdateRun first{.first = 3, .count = 200, .weight_decay = 0.1, .rounding_key = 1, .first_index = 40};
  const ops::UpdateRun second{.first = 210, .count = 333, .weight_decay = 0.0, .rounding_key = 2};
  const ops::UpdateRun columns{.first = 600,
                               .count = kRows * kCols - 2,
                               .weight_decay = 0.2,
                               .rounding_key = 3,
                               .first_index = 7 + 2,  // the second rank's columns, from its third on
                               .row_gap = kGlobalCols - kCols,
                               .cols = kCols,
                               .first_col = 2};
  for (const Dtype moments : {Dtype::f32, Dtype::bf16}) {
    HostShard together(Dtype::bf16, moments, kN), alone(Dtype::bf16, moments, kN);
    for (const HostShard* shard : {&together, &alone}) {
      shard->write_master(normals(9, 0, kN));
      shard->write_grad(normals(10, 0, kN));
    }
    UpdateState state;
    state.updates = 4;
    ops::AdamWArgs args = adamw_args(together.tensors(), state);
    args.runs = {first, second, columns};
    ops::adamw(Context{}, args);

    const auto update = [&](ops::UpdateRun run) {
      args.shard = alone.tensors().flat_range(run.first, run.count);
      run.first = 0;
      args.runs = {run};
      ops::adamw(Context{}, args);
    };
    update(first);
    update(second);
    for (std::int64_t row = 0; row < kRows; ++row) {  // each row is a run of neighbours
      ops::UpdateRun run = columns;
      const std::int64_t skipped = row == 0 ? 2 : 0;
      run.first = columns.first + row * kCols - 2 + skipped;
      run.count = kCols - skipped;
      run.first_index = row * kGlobalCols + 7 + skipped;
      run.row_gap = 0;
      update(run);
    }
    EXPECT_EQ(together.state_bytes(), alone.state_bytes()) << dtype_name(moments);
  }
}

// Over all 2^16 noise values a number is rounded away from zero exactly (dropped bits) times: no bias at all.
TEST(StochasticRounding, RoundsUpWithTheProbabilityOfTheFraction) {
  for (const float value : {1.0f, 1.001f, -3.14159f, 1e-20f, 6.0e-39f, 0.0f, -0.0f}) {
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
    const auto towards_zero = static_cast<std::uint16_t>(bits >> 16);
    std::uint32_t away = 0;
    for (std::uint32_t noise = 0; noise < 65536; ++noise) {
      const std::uint16_t rounded = bf16_stochastic(bits, noise);
      ASSERT_TRUE(rounded == towards_zero || rounded == towards_zero + 1) << value;
      if (rounded != towards_zero) ++away;
    }
    EXPECT_EQ(away, bits & 0xffffu) << value;
  }
}

TEST(StochasticRounding, KeepsInfinityAndNan) {
  for (const std::uint32_t noise : {0u, 0xffffu}) {
    EXPECT_EQ(bf16_stochastic(0x7f800000u, noise), 0x7f80u);
    EXPECT_EQ(bf16_stochastic(0xff800000u, noise), 0xff80u);
    for (const std::uint32_t nan : {0x7f800001u, 0x7fffffffu, 0xffffffffu, 0xffc00000u})
      EXPECT_TRUE(std::isnan(float_from_bf16_bits(bf16_stochastic(nan, noise)))) << std::hex << nan;
  }
}

TEST(StochasticRounding, NoiseDependsOnKeyUpdateAndIndexAndIsUniform) {
  EXPECT_NE(rounding_noise(rounding_stream(1, 1), 5), rounding_noise(rounding_stream(1, 2), 5));
  EXPECT_NE(rounding_noise(rounding_stream(1, 1), 5), rounding_noise(rounding_stream(2, 1), 5));
  EXPECT_NE(rounding_noise(rounding_stream(1, 1), 5), rounding_noise(rounding_stream(1, 1), 6));
  constexpr int kN = 1 << 16;
  double low = 0, high = 0;
  for (int i = 0; i < kN; ++i) {
    const std::uint32_t noise = rounding_noise(rounding_stream(9, 1), i);
    low += static_cast<double>(noise & 0xffffu) / 65536.0;
    high += static_cast<double>(noise >> 16) / 65536.0;
  }
  const double five_sigma = 5 / std::sqrt(12.0 * kN);
  EXPECT_NEAR(low / kN, 0.5, five_sigma);
  EXPECT_NEAR(high / kN, 0.5, five_sigma);
}

// v starts at 1 and the squared gradient is 2: the exact v is 2 - beta2^t. A step adds at most 0.001, below half the
// spacing 2^-7 of bf16 numbers above 1, so rounding to nearest never leaves 1.
TEST(StochasticRounding, SecondMomentDoesNotStall) {
  constexpr std::int64_t kN = 4096;
  constexpr double kSlowBeta2 = 0.999;
  HostShard shard(Dtype::f32, Dtype::bf16, kN);
  for (std::int64_t i = 0; i < kN; ++i) shard.tensors().v.as<Bfloat16>()[i] = Bfloat16(1.0f);
  const auto g = static_cast<float>(std::sqrt(2.0));
  shard.write_grad(std::vector<double>(kN, g));
  UpdateState state;
  Bfloat16 nearest(1.0f);
  for (std::int64_t t = 1; t <= 1000; ++t) {
    state.updates = t;
    ops::AdamWArgs args = adamw_args(shard.tensors(), state);
    args.beta2 = kSlowBeta2;
    ops::adamw(Context{}, args);
    nearest = Bfloat16(static_cast<float>(kSlowBeta2) * float(nearest) + static_cast<float>(1 - kSlowBeta2) * g * g);
  }
  EXPECT_EQ(float(nearest), 1.0f);
  const double exact_v = 2.0 - std::pow(kSlowBeta2, 1000), exact_m = g;
  double mean_v = 0, mean_m = 0;
  for (std::int64_t i = 0; i < kN; ++i) {
    mean_v += double(float(shard.tensors().v.as<Bfloat16>()[i])) / kN;
    mean_m += double(float(shard.tensors().m.as<Bfloat16>()[i])) / kN;
  }
  // The noise of an element is about sqrt(1000) x 2^-7 x 1/3 and shrinks with sqrt(4096): 0.0013; three times that.
  EXPECT_NEAR(mean_v, exact_v, 0.004);
  EXPECT_NEAR(mean_m, exact_m, 0.001);
}

}  // namespace
}  // namespace trainer::test
