// What `trainer plan` knows of cards, and what it advises when a configuration does not fit or run on one.
#include "core/train/cards.h"

#include <gtest/gtest.h>

#include "core/runtime/check.h"
#include "core/train/plan.h"
#include "core/train/plan_changes.h"
#include "tests/support/engine_harness.h"
#include "tests/support/layout_check.h"

namespace trainer::test {
namespace {

constexpr std::int64_t kGiB = std::int64_t{1} << 30;

std::string fault_of(const auto& run) {
  try {
    run();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::config);
    return e.what();
  }
  return {};
}

TEST(Cards, GoByNameOrBySize) {
  EXPECT_GT(find_card("b200").bytes, find_card("h200").bytes);
  EXPECT_GT(find_card("h200").bytes, find_card("h100").bytes);
  for (const char* spelling : {"a100-80", "A100-80", "A100-80GB", "a100_80gb", "A100 80GB"})
    EXPECT_EQ(find_card(spelling).name, "a100-80") << spelling;
  EXPECT_EQ(find_card("H100").name, "h100-80");
  EXPECT_EQ(find_card("RTX 4090").name, "rtx4090");
  EXPECT_EQ(find_card("24").bytes, 24 * kGiB);
  EXPECT_EQ(find_card("24 GiB").bytes, 24 * kGiB);
  EXPECT_EQ(find_card("23.5").bytes, 47 * kGiB / 2);
  EXPECT_EQ(find_card("24").sm, 0);
  for (const char* wrong : {"", "h300", "-3", "24GB", "nan", "gib"}) EXPECT_THROW(find_card(wrong), Error) << wrong;
}

TEST(Cards, GoByTheNameThatNvidiaSmiPrints) {
  for (const auto& [printed, name] : {std::pair{"NVIDIA B200", "b200"},
                                      {"NVIDIA H200", "h200"},
                                      {"NVIDIA H200 NVL", "h200nvl"},
                                      {"NVIDIA H100 80GB HBM3", "h100-80"},
                                      {"NVIDIA H100 PCIe", "h100-80"},
                                      {"NVIDIA H100 NVL", "h100nvl"},
                                      {"NVIDIA A100-SXM4-80GB", "a100-80"},
                                      {"NVIDIA A100-SXM4-40GB", "a100-40"},
                                      {"NVIDIA A100-PCIE-40GB", "a100-40"},
                                      {"NVIDIA A100 80GB PCIe", "a100-80"},
                                      {"NVIDIA L40S", "l40s"},
                                      {"NVIDIA L40", "l40"},
                                      {"NVIDIA L4", "l4"},
                                      {"NVIDIA A40", "a40"},
                                      {"NVIDIA A30", "a30"},
                                      {"NVIDIA A10", "a10"},
                                      {"NVIDIA RTX A6000", "rtxa6000"},
                                      {"NVIDIA RTX 6000 Ada Generation", "rtx6000ada"},
                                      {"NVIDIA GeForce RTX 4090", "rtx4090"},
                                      {"NVIDIA GeForce RTX 3090", "rtx3090"},
                                      {"Tesla T4", "t4"},
                                      {"Tesla V100-SXM2-32GB", "v100-32"},
                                      {"Tesla V100-PCIE-16GB", "v100-16"}})
    EXPECT_EQ(find_card(printed).name, name) << printed;
  // Other cards, or a part of one.
  for (const char* other : {"NVIDIA", "NVIDIA GeForce RTX 4090 D", "NVIDIA A100-SXM4-80GB MIG 1g.10gb", "NVIDIA A10G",
                            "NVIDIA H100 64GB HBM3"})
    EXPECT_THROW(find_card(other), Error) << other;
}

TEST(Cards, AreListedWhenTheNameIsWrong) {
  const std::string unknown = fault_of([] { find_card("h300"); });
  for (const char* name : {"h300", "b200", "h100-80", "v100-16"})
    EXPECT_NE(unknown.find(name), std::string::npos) << unknown;
  const std::string several = fault_of([] { find_card("A100"); });
  EXPECT_NE(several.find("a100-80 or a100-40"), std::string::npos) << several;
  EXPECT_EQ(several.find("h200"), std::string::npos) << several;
}

std::vector<std::string> sets_with(const std::vector<std::string>& more) {
  std::vector<std::string> sets = {"precision.dtype=bf16", "train.device=auto", "train.micro_batch_size=8",
                                   "train.global_batch_size=64"};
  sets.insert(sets.end(), more.begin(), more.end());
  return sets;
}

TEST(Cards, VoltaHasNeitherBf16NorFusedAttention) {
  const Card volta = find_card("v100-32"), ampere = find_card("a100-40");
  const Config config = family_config("llama3", sets_with({"train.attention=cudnn"}), 1);
  EXPECT_NO_THROW(check_card(config, ampere.name, ampere.sm));
  EXPECT_NO_THROW(check_card(config, "any", 0)) << "not known";
  const std::string fault = fault_of([&] { check_card(config, volta.name, volta.sm); });
  for (const char* part :
       {"precision.dtype", "v100-32 has compute capability 7.0", "right would be fp16", "train.attention", "builtin"})
    EXPECT_NE(fault.find(part), std::string::npos) << fault;
  EXPECT_NO_THROW(check_card(for_card(config, volta.sm), volta.name, volta.sm));
}

TEST(Cards, CudnnTakesDocumentsOnHopper) {
  const Config config = family_config(
      "llama3", sets_with({"train.attention=cudnn", "train.deterministic=false", "data.intra_document_attention=true"}),
      1);
  EXPECT_NO_THROW(check_card(config, "h100-80", 90));
  for (const int sm : {80, 100}) {
    const std::string fault = fault_of([&] { check_card(config, "this card", sm); });
    for (const char* part : {"train.attention: cudnn needs compute capability 9.0 for documents", "right would be"})
      EXPECT_NE(fault.find(part), std::string::npos) << fault;
    EXPECT_NO_THROW(check_card(for_card(config, sm), "this card", sm));
  }
}

TEST(Cards, HeadsOf128WantMoreSharedMemoryThanSomeCardsHave) {
  const auto faults = [](const std::vector<std::string>& more, int sm) {
    auto sets = sets_with({"precision.dtype=bf16", "model.head_dim=128"});
    sets.insert(sets.end(), more.begin(), more.end());
    return card_faults(family_config("llama3", sets, 1), "this card", sm);
  };
  for (const char* ours : {"train.attention=builtin", "data.intra_document_attention=true"}) {
    for (const int sm : {86, 89}) {
      ASSERT_EQ(faults({ours}, sm).size(), 1u) << ours << " " << sm;
      EXPECT_NE(faults({ours}, sm)[0].find("model.head_dim: our own attention cannot train heads of 128"),
                std::string::npos);
      EXPECT_TRUE(faults({ours, "model.head_dim=64"}, sm).empty());
      EXPECT_TRUE(faults({ours, "precision.dtype=float32"}, sm).empty());
    }
    EXPECT_TRUE(faults({ours}, 80).empty());
  }
  EXPECT_TRUE(faults({}, 89).empty());
}

TEST(Cards, AttentionScratchIsCountedWhereCudnnServes) {
  const auto counted = [](const std::vector<std::string>& more, int sm) {
    for (const MemoryReserve& reserve : plan_memory(family_config("llama3", sets_with(more), 1), 0, sm).reserves)
      if (reserve.name == "attention workspace") return reserve.bytes > 0;
    return false;
  };
  EXPECT_TRUE(counted({}, 0));
  EXPECT_TRUE(counted({}, 80));
  EXPECT_FALSE(counted({"precision.dtype=fp16"}, 70));
  EXPECT_FALSE(counted({"train.attention=builtin"}, 80));
  EXPECT_FALSE(counted({"model.attention_dropout=0.1"}, 80));
}

/// The configuration of `sets`, its advice for a card of `bytes` and what a rank needs when the advice is followed.
struct Followed {
  PlanChange change;
  std::int64_t bytes = 0;
};
Followed follow(const std::vector<std::string>& sets, int ranks, const Card& card) {
  // Not resolved: what is given is what the user wrote.
  Config given = family_config("llama3", sets_with(sets), ranks);
  given.parallelism.data_parallel_size = 0;
  if (given.parallelism.zero_group_size > 0) given.parallelism.zero_group_size = 0;
  Followed followed{.change = cheapest_change(given, ranks, card)};
  std::vector<std::string> all = sets;
  all.insert(all.end(), followed.change.sets.begin(), followed.change.sets.end());
  followed.bytes = fullest_rank(family_config("llama3", sets_with(all), ranks), card.sm).estimate.total_bytes();
  return followed;
}

/// A card that lacks `less` bytes for the configuration as it is.
Card card_lacking(std::int64_t less, const std::vector<std::string>& sets, int ranks) {
  const std::int64_t needed = fullest_rank(family_config("llama3", sets_with(sets), ranks)).estimate.total_bytes();
  return {"the card", needed - less + (std::int64_t{512} << 20), 0};
}

/// A model large enough that each setting matters.
const std::vector<std::string> kLarge = {"model.hidden_size=2048", "model.intermediate_size=8192",
                                         "model.num_layers=8",     "model.vocab_size=32000",
                                         "train.seq_length=1024",  "model.max_position_embeddings=1024"};

TEST(PlanChange, ComesWithTheNumbersOfThePlan) {
  for (const int ranks : {1, 2, 8})
    for (int less = 1; less < 16; less += 2) {
      const Card card = card_lacking(less * kGiB, kLarge, ranks);
      const Followed followed = follow(kLarge, ranks, card);
      EXPECT_FALSE(followed.change.sets.empty());
      EXPECT_EQ(followed.bytes, followed.change.bytes) << ranks << " ranks, " << less << " GiB";
      EXPECT_EQ(followed.change.fits, followed.bytes <= card.bytes);
    }
}

TEST(PlanChange, CheapSettingsComeFirst) {
  EXPECT_TRUE(follow(kLarge, 1, card_lacking(0, kLarge, 1)).change.sets.empty()) << "it fits as it is";
  EXPECT_EQ(follow(kLarge, 1, card_lacking(1, kLarge, 1)).change.sets,
            std::vector<std::string>{"activation_checkpointing.mode=selective"});
  EXPECT_EQ(follow(kLarge, 2, card_lacking(1, kLarge, 2)).change.sets,
            std::vector<std::string>{"parallelism.zero_stage=1"});
}

/// Held to the plans of all numbers of layers, which do not grow with each: of 8 layers 4 leave one slot without use.
TEST(PlanChange, KnowsHowManyLayersCanStay) {
  const std::vector<std::string> zero_3 = with(kLarge, {"parallelism.zero_stage=3"});
  for (const int ranks : {2, 8}) {
    std::vector<std::int64_t> needed;
    for (int layers = 0; layers <= 8; ++layers) {
      const auto sets = with(zero_3, {fmt::format("parallelism.zero_resident_layers={}", layers)});
      needed.push_back(fullest_rank(family_config("llama3", sets_with(sets), ranks)).estimate.total_bytes());
    }
    Config given = family_config("llama3", sets_with(zero_3), ranks);
    given.parallelism.data_parallel_size = 0;
    for (const std::int64_t bytes : needed)
      for (const std::int64_t less : {0, 1}) {
        std::int64_t most = 0;
        for (int layers = 0; layers <= 8; ++layers)
          if (needed[static_cast<std::size_t>(layers)] <= bytes - less) most = layers;
        const Card card{"the card", bytes - less + (std::int64_t{512} << 20), 0};
        EXPECT_EQ(most_resident_layers(given, ranks, card), most) << ranks << " ranks, " << bytes - less;
      }
  }
}

TEST(PlanChange, LetsFewerLayersStayBeforeItCostsMore) {
  std::vector<std::string> sets = kLarge;
  sets.insert(sets.end(), {"parallelism.zero_stage=3", "parallelism.zero_resident_layers=7"});
  EXPECT_EQ(follow(sets, 8, card_lacking(1, sets, 8)).change.sets,
            std::vector<std::string>{"parallelism.zero_resident_layers=6"});
}

TEST(PlanChange, SaysWhenNothingFits) {
  const Followed followed = follow(kLarge, 1, {"the card", kGiB, 0});
  EXPECT_FALSE(followed.change.fits);
  EXPECT_GT(followed.change.bytes, kGiB);
  EXPECT_GT(followed.change.host_bytes, 0) << "the least is with everything, offload too";
  EXPECT_EQ(followed.bytes, followed.change.bytes);
}

TEST(PlanChange, LeavesWhatTheCardCannotDo) {
  const Followed followed = follow(kLarge, 1, find_card("v100-32"));
  EXPECT_TRUE(followed.change.fits);
  EXPECT_EQ(followed.change.sets, std::vector<std::string>{"precision.dtype=fp16"});
}

}  // namespace
}  // namespace trainer::test
