#include "core/train/same_model.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "core/config/reader.h"
#include "core/runtime/check.h"

namespace trainer {
namespace {

std::string with(const auto& change) {
  Config config;
  change(config);
  return resolved_yaml(config);
}

OptimizerConfig sgd_with(double momentum, MomentsDtype moments = MomentsDtype::automatic) {
  OptimizerConfig sgd;
  sgd.name = OptimizerName::sgd;
  sgd.momentum = momentum;
  sgd.moments_dtype = moments;
  return sgd;
}

TEST(SameModel, FindsValuesByTheirPath) {
  const std::string yaml = with([](Config& c) {
    c.model.num_layers = 7;
    c.model.rope_scaling.factor = 8;
    c.precision.dtype = Precision::fp16;
  });
  EXPECT_EQ(value_in(yaml, "model.num_layers"), "7");
  EXPECT_EQ(value_in(yaml, "model.rope_scaling.factor"), "8");
  EXPECT_EQ(value_in(yaml, "model.rotary_pct"), "1");  // after a deeper section
  EXPECT_EQ(value_in(yaml, "precision.dtype"), "fp16");
  EXPECT_EQ(value_in(yaml, "precision.loss_scale.init_scale"), "65536");
  EXPECT_EQ(value_in(yaml, "model.no_such_key"), "");
}

TEST(SameModel, AnotherModelIsRefusedWithBothValues) {
  const std::string saved = with([](Config& c) { c.model.num_layers = 4; });
  EXPECT_TRUE(changed_settings(saved, saved).empty());
  const auto refusal = [&](const auto& change) {
    try {
      check_same_model(changed_settings(saved, with([&](Config& c) {
                                          c.model.num_layers = 4;
                                          change(c);
                                        })),
                       OptimizerConfig{});
      return std::string();
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ExitCode::config);
      return std::string(e.what());
    }
  };
  EXPECT_NE(refusal([](Config& c) { c.model.num_layers = 3; }).find("model.num_layers: 4 in the checkpoint, 3 now"),
            std::string::npos);
  EXPECT_NE(refusal([](Config& c) {
              c.model.tie_word_embeddings = true;
            }).find("model.tie_word_embeddings: false in the checkpoint, true now"),
            std::string::npos);
  EXPECT_NE(refusal([](Config& c) { c.model.norm_eps = 1e-6; }).find("model.norm_eps"), std::string::npos);
  EXPECT_NE(refusal([](Config& c) { c.optimizer.name = OptimizerName::sgd; }).find("optimizer.name: adamw in the"),
            std::string::npos);
  EXPECT_EQ(refusal([](Config& c) { c.optimizer.lr = 1e-5; }), "") << "not of the model";
  EXPECT_EQ(refusal([](Config& c) { c.model.rope_scaling.factor = 2; }), "");
}

TEST(SameModel, MomentumCannotStartFromNone) {
  const auto sgd = [](double momentum) { return with([=](Config& c) { c.optimizer = sgd_with(momentum); }); };
  try {
    check_same_model(changed_settings(sgd(0), sgd(0.9)), sgd_with(0.9));
    FAIL() << "not refused";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::config);
    EXPECT_NE(std::string(e.what()).find("optimizer.momentum: 0 in the checkpoint, 0.9 now (SGD without momentum"),
              std::string::npos)
        << e.what();
  }
  EXPECT_NO_THROW(check_same_model(changed_settings(sgd(0.9), sgd(0)), sgd_with(0)));
  EXPECT_NO_THROW(check_same_model(changed_settings(sgd(0.5), sgd(0.9)), sgd_with(0.9)));
  EXPECT_NO_THROW(check_same_model(changed_settings(sgd(0), sgd(0.9)), OptimizerConfig{})) << "has no use for it";
}

TEST(SameModel, TypesOfWhatIsSavedStay) {
  const auto refused = [](const auto& then, const auto& now) {
    try {
      check_same_model(changed_settings(with(then), with(now)), OptimizerConfig{});
      return std::string();
    } catch (const Error& e) {
      return std::string(e.what());
    }
  };
  const auto moments = [](MomentsDtype dtype) { return [=](Config& c) { c.optimizer.moments_dtype = dtype; }; };
  const auto precision = [](Precision dtype) { return [=](Config& c) { c.precision.dtype = dtype; }; };
  EXPECT_NE(refused(moments(MomentsDtype::automatic), moments(MomentsDtype::bf16))
                .find("optimizer.moments_dtype: auto in the checkpoint, bf16 now (moments are saved in their type)"),
            std::string::npos);
  EXPECT_NE(refused(moments(MomentsDtype::bf16), moments(MomentsDtype::float32)), "");
  EXPECT_EQ(refused(moments(MomentsDtype::automatic), moments(MomentsDtype::float32)), "");
  EXPECT_NE(refused(precision(Precision::float64), precision(Precision::float32))
                .find("precision.dtype: float64 in the checkpoint, float32 now"),
            std::string::npos);
  EXPECT_EQ(refused(precision(Precision::fp16), precision(Precision::bf16)), "");
}

/// SGD without momentum neither reads moments nor has any to save.
TEST(SameModel, NoMomentsHaveNoType) {
  const auto refused = [](const OptimizerConfig& then, const OptimizerConfig& now) {
    const auto yaml = [](const OptimizerConfig& sgd) { return with([&](Config& c) { c.optimizer = sgd; }); };
    try {
      check_same_model(changed_settings(yaml(then), yaml(now)), now);
      return std::string();
    } catch (const Error& e) {
      return std::string(e.what());
    }
  };
  EXPECT_EQ(refused(sgd_with(0), sgd_with(0, MomentsDtype::bf16)), "");
  EXPECT_EQ(refused(sgd_with(0, MomentsDtype::bf16), sgd_with(0)), "");
  EXPECT_EQ(refused(sgd_with(0.9), sgd_with(0, MomentsDtype::bf16)), "");
  EXPECT_NE(refused(sgd_with(0.9), sgd_with(0.9, MomentsDtype::bf16)), "");
  EXPECT_NE(refused(sgd_with(0, MomentsDtype::bf16), sgd_with(0.9)), "") << "a momentum has none to go on with";
}

TEST(SameModel, WhatARunMayChangeIsTold) {
  const std::string saved = with([](Config&) {});
  const auto changed = changed_settings(saved, with([](Config& c) {
                                          c.model.rope_theta = 500000;
                                          c.model.hidden_dropout = 0.1;
                                          c.train.train_steps = 40;
                                          c.data.intra_document_attention = true;
                                          c.optimizer.lr = 1e-5;
                                          c.precision.loss_scale.growth_interval = 100;
                                          c.data.train = {"other.h5"};
                                        }));
  EXPECT_NO_THROW(check_same_model(changed, OptimizerConfig{}));
  std::string told;
  for (const auto& [key, then, now] : changed) told += fmt::format("{}: {} -> {}\n", key, then, now);
  EXPECT_EQ(told,
            "data.intra_document_attention: false -> true\n"
            "data.train: [] -> [other.h5]\n"
            "model.hidden_dropout: 0 -> 0.1\n"
            "model.rope_theta: 10000 -> 500000\n"
            "optimizer.lr: 0.0003 -> 1.0e-05\n"
            "precision.loss_scale.growth_interval: 2000 -> 100\n"
            "train.train_steps: 0 -> 40\n");
}

TEST(SameModel, WhatChangesNoWeightIsNotTold) {
  const std::string saved = with([](Config&) {});
  EXPECT_TRUE(changed_settings(saved, with([](Config& c) {
                                 c.train.micro_batch_size = 8;
                                 c.train.output_dir = "elsewhere";
                                 c.parallelism.tensor_parallel_size = 2;
                                 c.parallelism.zero_stage = 3;
                                 c.optimizer.offload = true;
                                 c.checkpoint.keep_last = 1;
                                 c.logging.interval = 7;
                                 c.data.prefetch = 9;
                               }))
                  .empty());
}

TEST(SameModel, KeysOfAnotherVersionAreNotCompared) {
  std::string saved = with([](Config&) {});
  saved.erase(saved.find("  parallel_residual"),
              saved.find('\n', saved.find("  parallel_residual")) + 1 - saved.find("  parallel_residual"));
  EXPECT_TRUE(changed_settings(saved, with([](Config& c) { c.model.parallel_residual = true; })).empty());
}

}  // namespace
}  // namespace trainer
