// Recompute is the same function bit for bit, dropout included.
#include <gtest/gtest.h>

#include "core/train/inspect.h"
#include "parallel/self_communicator.h"
#include "tests/support/engine_harness.h"
#include "tests/support/goldens.h"

namespace trainer::test {
namespace {

std::uint64_t hash_after_steps(const std::string& family, const std::string& precision, const std::string& dropout,
                               const std::string& recompute) {
  const Config config = family_config(family,
                                      {"model.hidden_dropout=" + dropout, "model.attention_dropout=" + dropout,
                                       "precision.dtype=" + precision, "activation_checkpointing.mode=" + recompute},
                                      1);
  const FaultPlan no_fault;
  Engine engine(config, {}, std::make_unique<SelfCommunicator>("world"), no_fault);
  load_golden_weights(engine);
  SampleSource source(engine);
  for (std::int64_t step = 0; step < 3; ++step) engine.step(source.source(), step, 1e-3);
  return state_hash(engine);
}

class RecomputeTest : public ::testing::TestWithParam<const char*> {};

TEST_P(RecomputeTest, GivesTheSameBits) {
  for (const char* precision : {"float64", "float32", "bf16", "fp16"})
    for (const char* dropout : {"0", "0.1"}) {
      SCOPED_TRACE(fmt::format("{} dropout {}", precision, dropout));
      const std::uint64_t expected = hash_after_steps(GetParam(), precision, dropout, "none");
      EXPECT_EQ(hash_after_steps(GetParam(), precision, dropout, "selective"), expected);
      EXPECT_EQ(hash_after_steps(GetParam(), precision, dropout, "full"), expected);
    }
}

INSTANTIATE_TEST_SUITE_P(Families, RecomputeTest, ::testing::ValuesIn(kGoldenFamilies),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace trainer::test
