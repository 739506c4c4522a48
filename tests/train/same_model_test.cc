#include "core/train/same_model.h"

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
  EXPECT_EQ(compare_models(saved, saved), "");
  const auto refusal = [&](const auto& change) {
    try {
      compare_models(saved, with([&](Config& c) {
                       c.model.num_layers = 4;
                       change(c);
                     }));
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
  EXPECT_EQ(refusal([](Config& c) { c.optimizer.lr = 1e-5; }), "") << "only the model is compared";
}

TEST(SameModel, WhatARunMayChangeIsTold) {
  const std::string saved = with([](Config&) {});
  const std::string told = compare_models(saved, with([](Config& c) {
                                            c.model.rope_theta = 500000;
                                            c.model.hidden_dropout = 0.1;
                                          }));
  EXPECT_NE(told.find("model.rope_theta: 10000 in the checkpoint, 500000 now"), std::string::npos) << told;
  EXPECT_NE(told.find("model.hidden_dropout: 0 in the checkpoint, 0.1 now"), std::string::npos) << told;
}

TEST(SameModel, KeysOfAnotherVersionAreNotCompared) {
  std::string saved = with([](Config&) {});
  saved.erase(saved.find("  parallel_residual"),
              saved.find('\n', saved.find("  parallel_residual")) + 1 - saved.find("  parallel_residual"));
  EXPECT_EQ(compare_models(saved, with([](Config& c) { c.model.parallel_residual = true; })), "");
}

}  // namespace
}  // namespace trainer
