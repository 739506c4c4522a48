// The memory plan: what is planned without the job is what each rank of the job allocates, and the sums are those of
// the formulas.
#include <gtest/gtest.h>

#include "core/train/plan.h"
#include "parallel/plan_communicator.h"
#include "tests/support/engine_harness.h"
#include "tests/support/mpi_world.h"

namespace trainer::test {
namespace {

std::int64_t bytes_of(const MemoryEstimate& estimate, MemoryClass memory_class) {
  return estimate.classes[static_cast<std::size_t>(memory_class)];
}

std::vector<std::string> layout(int dp, int tp, int zero_stage) {
  return {fmt::format("parallelism.data_parallel_size={}", dp),
          fmt::format("parallelism.tensor_parallel_size={}", tp),
          fmt::format("parallelism.zero_stage={}", zero_stage),
          fmt::format("train.micro_batch_size={}", 8 / dp),
          "train.global_batch_size=8",
          "train.device=cpu"};
}

TEST(Plan, IsWhatEveryRankAllocates) {
  const int size = test_world().size();
  const FaultPlan no_fault;
  for (const char* family : {"gpt2", "llama3", "qwen3", "neox"})
    for (int tp = 1; tp <= size; tp *= 2)
      for (int zero_stage = 0; zero_stage <= 3; ++zero_stage)
        for (const char* mode : {"none", "selective", "full"})
          for (const char* sequence_parallel : {"false", "true"}) {
            if (tp == 1 && std::string(sequence_parallel) == "true") continue;
            auto sets = layout(size / tp, tp, zero_stage);
            sets.push_back(fmt::format("activation_checkpointing.mode={}", mode));
            sets.push_back(fmt::format("parallelism.sequence_parallel={}", sequence_parallel));
            sets.emplace_back("precision.dtype=bf16");
            sets.emplace_back("precision.grad_reduce_dtype=bf16");
            if (zero_stage == 3) sets.emplace_back("parallelism.zero_resident_layers=1");
            SCOPED_TRACE(fmt::format("{} tp {} zero {} {} {}", family, tp, zero_stage, mode, sequence_parallel));
            const Config config = family_config(family, sets, size);
            const MemoryEstimate planned = plan_memory(config, test_world().rank());
            const Engine engine(config, {}, new_test_world(), no_fault);
            EXPECT_EQ(planned.classes, engine.memory_taken());
            EXPECT_EQ(planned.total_bytes(), engine.memory_estimate().total_bytes());
          }
}

/// Bytes of weights, gradients, masters and moments for each element, over a job that need not exist.
struct PerElement {
  double weights, gradients, masters, moments;
};
PerElement per_element(const std::vector<std::string>& sets, int ranks) {
  const MemoryEstimate estimate = plan_memory(family_config("llama3", sets, ranks), ranks - 1);
  const auto each = [&](MemoryClass c) {
    return static_cast<double>(bytes_of(estimate, c)) / static_cast<double>(estimate.parameters);
  };
  return {each(MemoryClass::weights), each(MemoryClass::gradients), each(MemoryClass::masters),
          each(MemoryClass::moments)};
}

void expect_close(const PerElement& got, const PerElement& expected) {
  constexpr double kPadding = 0.03;  // each block's buffers start at a multiple of 256 bytes: much in a tiny model
  EXPECT_NEAR(got.weights, expected.weights, kPadding * expected.weights);
  EXPECT_NEAR(got.gradients, expected.gradients, kPadding * expected.gradients);
  EXPECT_NEAR(got.masters, expected.masters, kPadding * expected.masters + 1e-9);
  EXPECT_NEAR(got.moments, expected.moments, kPadding * expected.moments);
}

std::vector<std::string> with(std::vector<std::string> sets, const std::vector<std::string>& more) {
  sets.insert(sets.end(), more.begin(), more.end());
  return sets;
}

TEST(Plan, BytesOfAParameterFollowFromPrecisionAndZero) {
  expect_close(per_element(with(layout(1, 1, 0), {"precision.dtype=float32"}), 1), {4, 4, 0, 8});
  expect_close(per_element(with(layout(1, 1, 0), {"precision.dtype=bf16"}), 1), {2, 4, 2, 8});
  expect_close(per_element(with(layout(1, 1, 0), {"precision.dtype=fp16"}), 1), {2, 4, 4, 8});
  expect_close(per_element(with(layout(1, 1, 0), {"precision.dtype=bf16", "optimizer.moments_dtype=bf16"}), 1),
               {2, 4, 2, 4});
  expect_close(per_element(with(layout(4, 1, 1), {"precision.dtype=bf16"}), 4), {2, 4, 2.0 / 4, 8.0 / 4});
  expect_close(per_element(with(layout(8, 1, 1), {"precision.dtype=bf16", "parallelism.zero_group_size=2"}), 8),
               {2, 4, 2.0 / 2, 8.0 / 2});
  expect_close(per_element(with(layout(4, 1, 2), {"precision.dtype=bf16"}), 4), {2, 4.0 / 4, 2.0 / 4, 8.0 / 4});
  expect_close(per_element(with(layout(4, 1, 3), {"precision.dtype=bf16"}), 4), {2.0 / 4, 4.0 / 4, 2.0 / 4, 8.0 / 4});
}

/// What is whole under ZeRO 3 is two blocks and the longer of embedding and head, however many layers there are.
TEST(Plan, WholeBlocksUnderZero3DoNotGrowWithDepth) {
  const auto communication = [](int layers, int stage) {
    const auto sets = with(layout(4, 1, stage), {"precision.dtype=bf16", fmt::format("model.num_layers={}", layers)});
    return bytes_of(plan_memory(family_config("llama3", sets, 4), 0), MemoryClass::communication);
  };
  EXPECT_EQ(communication(4, 1), 0);
  EXPECT_EQ(communication(4, 3), communication(40, 3));
  EXPECT_EQ(communication(4, 2), communication(40, 2));
  EXPECT_NEAR(static_cast<double>(communication(4, 3)), 1.5 * static_cast<double>(communication(4, 2)),
              0.02 * static_cast<double>(communication(4, 3)))
      << "gradients have 4 bytes, weights 2";
}

TEST(Plan, OffloadMovesMastersAndMomentsToTheHost) {
  const int ranks = test_world().size();
  const FaultPlan no_fault;
  for (const char* precision : {"float32", "bf16", "fp16"}) {
    const auto sets = with(layout(ranks, 1, ranks > 1 ? 1 : 0), {fmt::format("precision.dtype={}", precision)});
    const MemoryEstimate before = plan_memory(family_config("llama3", sets, ranks), test_world().rank());
    const Config config = family_config("llama3", with(sets, {"optimizer.offload=true"}), ranks);
    const MemoryEstimate after = plan_memory(config, test_world().rank());
    EXPECT_EQ(before.host_bytes(), 0);
    EXPECT_EQ(after.host_bytes(), bytes_of(before, MemoryClass::masters) + bytes_of(before, MemoryClass::moments));
    EXPECT_EQ(bytes_of(after, MemoryClass::masters) + bytes_of(after, MemoryClass::moments), 0);
    EXPECT_LT(after.arena_bytes(), before.arena_bytes());
    for (const Arena::Buffer& buffer : after.buffers) EXPECT_NE(buffer.memory_class, MemoryClass::host) << buffer.name;
    EXPECT_NE(memory_table(after).find("pinned, on the host"), std::string::npos) << memory_table(after);
    const Engine engine(config, {}, new_test_world(), no_fault);
    EXPECT_EQ(after.classes, engine.memory_taken());
  }
}

TEST(Plan, SaysWhenAHostHasTooLittle) {
  MemoryEstimate estimate;
  EXPECT_EQ(host_memory_note(estimate, 8, 1), "");
  EXPECT_NO_THROW(check_host_fits(estimate, 8, 1));
  estimate.classes[static_cast<std::size_t>(MemoryClass::host)] = std::int64_t{3} << 30;
  EXPECT_NO_THROW(check_host_fits(estimate, 8, std::int64_t{24} << 30));
  EXPECT_EQ(host_memory_note(estimate, 8, std::int64_t{24} << 30).find("too little"), std::string::npos);
  EXPECT_THROW(check_host_fits(estimate, 8, std::int64_t{23} << 30), Error);
  const std::string note = host_memory_note(estimate, 8, std::int64_t{23} << 30);
  EXPECT_NE(note.find("24.0 GiB"), std::string::npos) << note;
  EXPECT_NE(note.find("too little"), std::string::npos) << note;
  EXPECT_GT(host_ram_bytes(), std::int64_t{1} << 28);
}

TEST(Plan, NamesTheRankTheSizesAndTheSettingsWhenItDoesNotFit) {
  const Config config = family_config("llama3", with(layout(4, 1, 0), {"precision.dtype=bf16"}), 4);
  const MemoryEstimate estimate = plan_memory(config, 3);
  EXPECT_NO_THROW(check_fits(config, estimate, 3, estimate.total_bytes(), 0));
  try {
    check_fits(config, estimate, 3, estimate.arena_bytes() - 1, 0);
    FAIL() << "it fitted";
  } catch (const Error& e) {
    const std::string what = e.what();
    EXPECT_EQ(e.code(), ExitCode::memory);
    EXPECT_NE(what.find("rank 3"), std::string::npos) << what;
    EXPECT_NE(what.find(fmt::format("({} bytes)", estimate.arena_bytes())), std::string::npos) << what;
    EXPECT_NE(what.find(fmt::format("({} bytes) are free", estimate.arena_bytes() - 1)), std::string::npos) << what;
    EXPECT_NE(what.find(estimate.buffers.front().name), std::string::npos) << what;
    EXPECT_NE(what.find(shrink_advice(config, estimate.buffers.front())), std::string::npos) << what;
  }
}

/// What a rank takes before its arena counts once, however much of it is taken already.
TEST(Plan, CountsWhatIsTakenFirstOnce) {
  const Config config = family_config("llama3", with(layout(4, 1, 0), {"precision.dtype=bf16"}), 4);
  MemoryEstimate estimate;
  estimate.classes[0] = 1000;
  estimate.reserves = {{"first", 100, true}, {"later", 10, false}};
  constexpr std::int64_t kCard = 1110;
  for (const std::int64_t used : {0, 60, 100}) EXPECT_NO_THROW(check_fits(config, estimate, 0, kCard - used, used));
  for (const std::int64_t used : {0, 60, 101})
    EXPECT_THROW(check_fits(config, estimate, 0, kCard - 1 - used, used), Error);
}

std::int64_t reserve_mib(const std::string& name, int dp, int tp, const std::vector<std::string>& more = {}) {
  std::vector<std::string> sets = with(layout(dp, tp, 1), {"precision.dtype=bf16", "train.device=auto"});
  const MemoryEstimate estimate = plan_memory(family_config("llama3", with(sets, more), dp * tp), 0);
  for (const MemoryReserve& reserve : estimate.reserves)
    if (reserve.name == name) return reserve.bytes >> 20;
  return 0;
}

/// Groups that are the whole job share its communicator.
TEST(Plan, CountsTheCommunicators) {
  EXPECT_EQ(reserve_mib("NCCL", 1, 1), 0);
  EXPECT_EQ(reserve_mib("NCCL", 2, 1), 1376);
  EXPECT_EQ(reserve_mib("NCCL", 1, 2), 1376);
  EXPECT_EQ(reserve_mib("NCCL", 8, 1), 1376);
  EXPECT_EQ(reserve_mib("NCCL", 2, 2), 1376 + 2 * 1024) << "world, tp and dp";
  EXPECT_EQ(reserve_mib("NCCL", 8, 1, {"parallelism.zero_group_size=2"}), 1376 + 2 * 1024)
      << "world, zero and its replicas";
  EXPECT_EQ(reserve_mib("peer copies", 1, 1), 0);
  EXPECT_EQ(reserve_mib("peer copies", 2, 1, {"comm.peer_copies=false"}), 0);
  EXPECT_EQ(reserve_mib("peer copies", 2, 1), 256);
  EXPECT_EQ(reserve_mib("peer copies", 2, 2), 512) << "tp and dp";
}

/// Following the advice for a buffer makes the plan of the same ranks smaller. Returns the number of buffers.
int follow_advice(const std::vector<std::string>& sets, int ranks) {
  const Config config = family_config("llama3", with(sets, {"parallelism.data_parallel_size=0"}), ranks);
  const MemoryEstimate before = plan_memory(config, 0);
  int checked = 0;
  for (const Arena::Buffer& buffer : before.buffers) {
    if (buffer.bytes < before.arena_bytes() / 100) continue;
    const std::string advice = shrink_advice(config, buffer);
    if (advice.find(": ") == std::string::npos || advice.starts_with("nothing") || advice.starts_with("more ranks"))
      continue;
    const std::string key = advice.substr(0, advice.find(':'));
    std::string value = advice.substr(advice.find(": ") + 2);
    value = value.substr(0, value.find(' '));
    const auto followed = with(sets, {"parallelism.data_parallel_size=0", fmt::format("{}={}", key, value)});
    SCOPED_TRACE(fmt::format("{}: {}", buffer.name, advice));
    const MemoryEstimate after =
        plan_memory(family_config("llama3", followed, ranks), 0);  // throws unless it validates
    if (buffer.memory_class == MemoryClass::logits) continue;      // a bounded chunk, however wide the vocabulary
    EXPECT_LT(after.arena_bytes(), before.arena_bytes());
    ++checked;
  }
  return checked;
}

TEST(Plan, AdviceValidatesAndShrinksTheBuffer) {
  EXPECT_GE(follow_advice(with(layout(2, 1, 0), {"precision.dtype=bf16"}), 2), 5);
  EXPECT_GE(follow_advice(with(layout(1, 2, 0), {"precision.dtype=bf16", "optimizer.moments_dtype=bf16"}), 2), 4);
  EXPECT_GE(follow_advice(with(layout(1, 1, 0), {"precision.dtype=bf16", "optimizer.moments_dtype=bf16"}), 1), 4);
  // Layers enough that a shard of all weights and two whole blocks are less than all weights.
  const std::vector<std::string> deep = {"precision.dtype=bf16", "model.num_layers=8"};
  EXPECT_GE(follow_advice(with(layout(2, 1, 2), deep), 2), 4);
  EXPECT_GE(follow_advice(with(layout(2, 1, 1), with(deep, {"precision.grad_reduce_dtype=bf16"})), 2), 4);
  EXPECT_GE(follow_advice(with(layout(2, 1, 3), with(deep, {"parallelism.zero_resident_layers=8"})), 2), 4);
}

/// Sharded gradients in bf16 take less than in float32, where embedding and head are not most of the model.
TEST(Plan, GradientsInTheTypeOfTheWireTakeLess) {
  for (const int stage : {2, 3}) {
    const auto communication = [&](const char* wire) {
      const auto sets = with(layout(4, 1, stage), {"precision.dtype=bf16", "model.vocab_size=64",
                                                   fmt::format("precision.grad_reduce_dtype={}", wire)});
      return bytes_of(plan_memory(family_config("llama3", sets, 4), 0), MemoryClass::communication);
    };
    EXPECT_LT(communication("bf16"), communication("float32"));
  }
}

/// Tensor parallelism is advised only where heads, MLP and ranks divide.
TEST(Plan, AdviceNeverSplitsWhatDoesNotDivide) {
  const Arena::Buffer weights{"weights", MemoryClass::weights, 1};
  const auto advice = [&](int dp, int tp, int stage, const std::vector<std::string>& more) {
    return shrink_advice(family_config("llama3", with(layout(dp, tp, stage), more), dp * tp), weights);
  };
  EXPECT_TRUE(advice(2, 1, 3, {}).starts_with("parallelism.tensor_parallel_size: 2 ")) << advice(2, 1, 3, {});
  EXPECT_TRUE(advice(1, 1, 0, {}).starts_with("more ranks")) << "one rank splits nothing";
  EXPECT_TRUE(advice(2, 1, 3, {"model.intermediate_size=177"}).starts_with("more ranks"));
  const std::vector<std::string> three_heads = {"model.num_attention_heads=3", "model.num_key_value_heads=3",
                                                "model.head_dim=16"};
  EXPECT_TRUE(advice(2, 1, 3, three_heads).starts_with("more ranks"));
}

TEST(Plan, TableShowsClassesReservesAndTheirSum) {
  MemoryEstimate estimate;
  estimate.classes[static_cast<std::size_t>(MemoryClass::weights)] = 1 << 20;
  estimate.classes[static_cast<std::size_t>(MemoryClass::moments)] = 2 << 20;
  estimate.reserves.push_back({"CUDA context", 5 << 20, true});
  const std::string text = memory_table(estimate);
  EXPECT_NE(text.find("  weights       1.00 MiB\n"), std::string::npos) << text;
  EXPECT_NE(text.find("  moments       2.00 MiB\n"), std::string::npos) << text;
  EXPECT_NE(text.find("  CUDA context  5.00 MiB\n"), std::string::npos) << text;
  EXPECT_NE(text.find("  sum           8.00 MiB\n"), std::string::npos) << text;
  EXPECT_EQ(text.find("gradients"), std::string::npos) << text;
}

TEST(Plan, IsHeldToThreePercentOrHalfAGibibyte) {
  constexpr std::int64_t kMiB = std::int64_t{1} << 20;
  MemoryEstimate estimate;
  const auto holds = [&](std::int64_t planned, std::int64_t used) {
    estimate.classes[0] = planned * kMiB;
    const std::string text = plan_check(estimate, used * kMiB);
    return text.find("NOT") == std::string::npos;
  };
  EXPECT_TRUE(holds(1000, 1512));
  EXPECT_FALSE(holds(1000, 1513));
  EXPECT_FALSE(holds(1000, 487));
  EXPECT_TRUE(holds(100000, 103000));
  EXPECT_FALSE(holds(100000, 103001));
  EXPECT_TRUE(holds(100000, 97000));
}

TEST(Plan, CommunicatesWithNobody) {
  PlanCommunicator planned(1, {.tp = 2, .dp = 3});
  EXPECT_EQ(planned.size(), 6);
  EXPECT_THROW(planned.barrier(), Error);
  EXPECT_THROW(planned.split(0, 0, "a group that Mesh does not have"), Error);
}

}  // namespace
}  // namespace trainer::test
