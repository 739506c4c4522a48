// Whole models on a card: against PyTorch, against themselves, and through checkpoints of the CPU.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "core/runtime/device.h"
#include "core/train/checkpointing.h"
#include "core/train/inspect.h"
#include "kernels/backend.h"
#include "parallel/self_communicator.h"
#include "tests/support/engine_harness.h"
#include "tests/support/golden_check.h"
#include "tests/support/goldens.h"
#include "tests/support/layout_check.h"

namespace trainer::test {
namespace {

/// The first card, or a skipped test.
class GpuModel : public ::testing::Test {
 protected:
  void SetUp() override {
    if (device_count() == 0) GTEST_SKIP() << "no CUDA card";
    device_ = std::make_unique<DeviceContext>(Device{DeviceKind::cuda, 0});
    ctx_ = device_->context();
    backend_ = make_cuda_backend(ctx_);
    ctx_.backend = backend_.get();
  }
  std::unique_ptr<Engine> engine(const std::string& family, const std::vector<std::string>& sets) const {
    return std::make_unique<Engine>(family_config(family, sets, 1), ctx_, std::make_unique<SelfCommunicator>("world"),
                                    no_fault_);
  }

  FaultPlan no_fault_;
  std::unique_ptr<DeviceContext> device_;
  std::shared_ptr<CudaBackend> backend_;
  Context ctx_;
};

class GpuGolden : public GpuModel, public ::testing::WithParamInterface<const char*> {};
TEST_P(GpuGolden, Float32) {
  check_golden(GetParam(), ctx_, {"float32", 1e-5, 1e-5, 1e-8, 1e-5, 1e-4, 1e-2});
}
INSTANTIATE_TEST_SUITE_P(Families, GpuGolden, ::testing::ValuesIn(kGoldenFamilies),
                         [](const auto& info) { return std::string(info.param); });

/// A run may begin on either device: weights, masters and moments have the same bits.
TEST_F(GpuModel, StartsWithTheWeightsOfTheCpu) {
  for (const char* family : {"gpt2", "llama3"})
    for (const char* precision : {"float32", "bf16", "fp16"}) {
      const std::vector<std::string> sets = {std::string("precision.dtype=") + precision};
      const auto on_gpu = engine(family, sets);
      Engine on_cpu(family_config(family, sets, 1), {}, std::make_unique<SelfCommunicator>("world"), no_fault_);
      on_gpu->initialize();
      on_cpu.initialize();
      EXPECT_EQ(state_hash(*on_gpu), state_hash(on_cpu)) << family << " " << precision;
    }
}

std::vector<std::string> sets_of(const std::string& precision, const std::string& dropout,
                                 const std::string& recompute) {
  return {"model.hidden_dropout=" + dropout, "precision.dtype=" + precision,
          "activation_checkpointing.mode=" + recompute};
}

std::uint64_t hash_after_steps(Engine& engine, int steps) {
  load_golden_weights(engine);
  SampleSource source(engine);
  for (int step = 0; step < steps; ++step) engine.step(source.source(), step, 1e-3);
  return state_hash(engine);
}

TEST_F(GpuModel, SameBitsTwiceAndUnderRecompute) {
  for (const char* family : {"gpt2", "llama3", "qwen3"})
    for (const char* precision : {"float32", "bf16", "fp16"})
      for (const char* dropout : {"0", "0.1"}) {
        SCOPED_TRACE(fmt::format("{} {} dropout {}", family, precision, dropout));
        const auto hash = [&](const char* recompute) {
          return hash_after_steps(*engine(family, sets_of(precision, dropout, recompute)), 5);
        };
        const std::uint64_t once = hash("none");
        EXPECT_EQ(hash("none"), once);
        EXPECT_EQ(hash("selective"), once);
        EXPECT_EQ(hash("full"), once);
      }
}

/// Masters and moments in the host's memory, brought to the card for each update. The last vocabulary makes a block of
/// more than one piece.
TEST_F(GpuModel, OffloadedOptimizerStateHasTheSameBits) {
  for (const char* precision : {"float32", "bf16", "fp16"})
    for (const char* moments : {"auto", "bf16"})
      for (const char* vocab : {"256", "300000"}) {
        SCOPED_TRACE(fmt::format("{} moments {} vocabulary {}", precision, moments, vocab));
        const auto hash = [&](const char* offload, const char* overlap) {
          const auto trained = engine(
              "llama3", {std::string("precision.dtype=") + precision, std::string("optimizer.moments_dtype=") + moments,
                         std::string("model.vocab_size=") + vocab, std::string("optimizer.offload=") + offload,
                         std::string("comm.overlap=") + overlap});
          trained->initialize();
          SampleSource source(*trained);
          for (int step = 0; step < 5; ++step) trained->step(source.source(), step, 1e-3);
          return state_hash(*trained);
        };
        const std::uint64_t resident = hash("false", "true");
        EXPECT_EQ(hash("true", "true"), resident);
        EXPECT_EQ(hash("true", "false"), resident);
      }
}

/// 16-bit training follows float32 training: the loss of ten steps differs by rounding only.
TEST_F(GpuModel, SixteenBitFollowsFloat32) {
  for (const char* family : kGoldenFamilies) {
    std::vector<double> expected;
    for (const char* precision : {"float32", "bf16", "fp16"}) {
      const auto trained = engine(family, {std::string("precision.dtype=") + precision});
      load_golden_weights(*trained);
      SampleSource source(*trained);
      for (int step = 0; step < 10; ++step) {
        trained->step(source.source(), step, 1e-3);
        const double loss = trained->state().loss_sum / trained->state().target_tokens;
        if (std::string(precision) == "float32")
          expected.push_back(loss);
        else
          EXPECT_NEAR(loss, expected[static_cast<std::size_t>(step)], 0.02)
              << family << " " << precision << " step " << step;
      }
    }
  }
}

/// Attention within documents: float32 as on the CPU; bf16, with heads that our flash attention serves, follows it, and
/// so it does where cuDNN may serve.
TEST_F(GpuModel, DocumentsAreThoseOfTheCpu) {
  const std::string documents = "data.intra_document_attention=true";
  for (const char* family : {"gpt2", "llama3", "mistral"}) {
    SCOPED_TRACE(family);
    const std::vector<std::string> sets = {documents, "precision.dtype=float32", "model.head_dim=64"};
    const LayoutRun expected = run_alone({}, family, sets);
    expect_equal_to_alone(ctx_, std::make_unique<SelfCommunicator>("world"), family, {}, sets, expected,
                          kFloat32Layout);
    const auto hash = [&] {
      const auto trained =
          engine(family, with(Layout{}.sets(), {documents, "precision.dtype=bf16", "model.head_dim=64"}));
      load_golden_weights(*trained);
      SampleSource source(*trained);
      trained->step(source.source(), 0, 1e-3);
      EXPECT_NEAR(trained->state().loss_sum / trained->state().target_tokens, expected.loss, 0.02);
      for (int step = 1; step < 5; ++step) trained->step(source.source(), step, 1e-3);
      return state_hash(*trained);
    };
    EXPECT_EQ(hash(), hash());
    ctx_.deterministic = false;
    hash();
    ctx_.deterministic = true;
  }
}

/// Saved on one device, loaded on the other: the same masters and moments, and a run that goes on alike, also when the
/// GPU has them in the host's memory from there on.
TEST_F(GpuModel, CheckpointsMoveBetweenCpuAndGpu) {
  for (const char* precision : {"float32", "bf16", "fp16"}) {
    SCOPED_TRACE(precision);
    const std::vector<std::string> sets = {std::string("precision.dtype=") + precision};
    const std::string folder = fmt::format("{}/gpu_model.{}", ::testing::TempDir(), getpid());
    const auto save = [&](Engine& from) {
      save_checkpoint({.save_dir = folder,
                       .step = 3,
                       .pieces = pieces_to_save(from),
                       .state_json = to_json(RunState{.step = 3, .update = from.state()}),
                       .config_yaml = {},
                       .versions = {},
                       .layout = {},
                       .keep_last = 0},
                      from.mesh().world(), no_fault_);
    };
    const auto load = [&](Engine& into) {
      const auto found = find_checkpoint(folder, "auto", into.mesh().world(), [](const std::string&) {});
      ASSERT_TRUE(found.has_value());
      load_pieces(*found, pieces_to_load(into), into.mesh().world());
      finish_load(into);
      into.restore_state(run_state_from_json(found->manifest.state_json).update);
    };
    const auto on_gpu = engine("llama3", sets);
    hash_after_steps(*on_gpu, 3);
    save(*on_gpu);
    Engine on_cpu(family_config("llama3", sets, 1), {}, std::make_unique<SelfCommunicator>("world"), no_fault_);
    load(on_cpu);
    EXPECT_EQ(state_hash(on_cpu), state_hash(*on_gpu));
    std::filesystem::remove_all(folder);
    save(on_cpu);
    auto offloaded = sets;
    offloaded.emplace_back("optimizer.offload=true");
    const auto back = engine("llama3", offloaded);
    load(*back);
    EXPECT_EQ(state_hash(*back), state_hash(*on_gpu));
    std::filesystem::remove_all(folder);
    SampleSource source(*back), same(*on_gpu);
    source.seek(3);
    same.seek(3);
    for (int step = 3; step < 6; ++step) {
      back->step(source.source(), step, 1e-3);
      on_gpu->step(same.source(), step, 1e-3);
    }
    EXPECT_EQ(state_hash(*back), state_hash(*on_gpu)) << "a resume on the GPU is the unbroken run";
  }
}

}  // namespace
}  // namespace trainer::test
