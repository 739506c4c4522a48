#include <gtest/gtest.h>

#include <cstdlib>
#include <map>

#include "tests/config/support.h"

namespace trainer {
namespace {

TEST(ConfigPrecedence, LaterSourcesWin) {
  const std::string first = config_file("first.yaml", valid_text);
  const std::string second = config_file("second.yaml", "optimizer:\n  lr: 2e-4\n  beta1: 0.8\n");
  ConfigSources sources{.files = {first, second}};
  ConfigOrigins origins;

  Config config = read_config(sources, &origins);
  EXPECT_EQ(config.optimizer.lr, 2e-4);
  EXPECT_EQ(config.optimizer.beta1, 0.8);
  EXPECT_EQ(config.optimizer.beta2, 0.95);
  EXPECT_EQ(config.model.hidden_size, 64);
  EXPECT_EQ(origins.at("optimizer.lr"), second + ":2:7");
  EXPECT_EQ(origins.at("model.hidden_size"), first + ":2:16");
  EXPECT_FALSE(origins.contains("optimizer.beta2"));

  sources.environment = {{"TRAINER__OPTIMIZER__LR", "1e-4"}, {"TRAINER__MODEL__ROPE_SCALING__TYPE", "linear"}};
  config = read_config(sources, &origins);
  EXPECT_EQ(config.optimizer.lr, 1e-4);
  EXPECT_EQ(config.model.rope_scaling.type, RopeScalingType::linear);
  EXPECT_EQ(origins.at("optimizer.lr"), "environment TRAINER__OPTIMIZER__LR");

  sources.sets = {"optimizer.lr=5e-5", "optimizer.lr=4e-5"};
  config = read_config(sources, &origins);
  EXPECT_EQ(config.optimizer.lr, 4e-5);
  EXPECT_EQ(origins.at("optimizer.lr"), "--set optimizer.lr=4e-5");
}

TEST(ConfigPrecedence, OrderOfFilesMatters) {
  const std::string first = config_file("a.yaml", valid_text);
  const std::string second = config_file("b.yaml", "optimizer:\n  lr: 2e-4\n");
  EXPECT_EQ(read_config({.files = {second, first}}).optimizer.lr, 3e-4);
  EXPECT_EQ(read_config({.files = {first, second}}).optimizer.lr, 2e-4);
}

TEST(ConfigPrecedence, ListsAreReplacedAsAWhole) {
  const std::string first = config_file("list.yaml", with_line(14, "  train: [a.h5, b.h5]"));
  const Config config = read_config({.files = {first}, .sets = {"data.train=[c.h5]"}});
  EXPECT_EQ(config.data.train, std::vector<std::string>{"c.h5"});
}

TEST(ConfigPrecedence, SettingsOutsideFilesAreTakenAsTheyAre) {
  const std::string file = config_file("base.yaml", valid_text);
  const Config config = read_config({.files = {file},
                                     .sets = {"data.train=*.h5", "train.output_dir=runs/a: b #1",
                                              "checkpoint.save_dir=", "model.rope_scaling={type: llama3, factor: 8}",
                                              "data.validation=[\"x, y.h5\", z.h5]", "optimizer.nesterov=false",
                                              "logging.progress=on", "checkpoint.load='it''s'"}});
  EXPECT_EQ(config.data.train, std::vector<std::string>{"*.h5"});
  EXPECT_EQ(config.train.output_dir, "runs/a: b #1");
  EXPECT_EQ(config.checkpoint.save_dir, "");
  EXPECT_EQ(config.model.rope_scaling.type, RopeScalingType::llama3);
  EXPECT_EQ(config.model.rope_scaling.factor, 8);
  EXPECT_EQ(config.data.validation, (std::vector<std::string>{"x, y.h5", "z.h5"}));
  EXPECT_EQ(config.logging.progress, ProgressMode::on);
  EXPECT_EQ(config.checkpoint.load, "it's");
}

TEST(ConfigPrecedence, NoFilesAtAll) {
  const std::string fault = config_fault([] { read_config({.sets = {"model.hidden_size=64"}}); });
  EXPECT_NE(fault.find("\nmodel.num_layers: is missing; right would be an integer from 1 to 100000"), std::string::npos)
      << fault;
  EXPECT_EQ(fault.find("hidden_size: is missing"), std::string::npos) << fault;
  const Config config = read_config(
      {.sets = {"model={hidden_size: 64, num_layers: 2, num_attention_heads: 4, intermediate_size: 176, vocab_size: 9}",
                "train={seq_length: 8, global_batch_size: 2, train_steps: 1}", "data.train=a.h5"}});
  EXPECT_EQ(config.model.vocab_size, 9);
}

TEST(ConfigPrecedence, WrongSettingsNameTheirSource) {
  const std::string file = config_file("good.yaml", valid_text);
  const std::string fault = config_fault([&] {
    read_config(
        {.files = {file},
         .sets = {"optimizer.lr", "optimizer.lrr=1", "optimizer.lr=", "train.train_steps=1.5", "data.train[0]=a",
                  "optimizer.lr.x=1", "optimizer=3", "model.norm=rms", "data.train=[a", "optimizer.beta1=null"},
         .environment = {{"TRAINER__OPTIM__LR", "1"}, {"TRAINER__OPTIM__X", "1"}, {"TRAINER__OPTIMIZER__LR", "fast"}}});
  });
  for (const char* line :
       {"the configuration has 13 faults:",
        "environment TRAINER__OPTIM__LR: optim.lr: unknown key; lr belongs to optimizer: did you mean optimizer.lr",
        "environment TRAINER__OPTIM__X: optim.x: unknown key; did you mean optimizer",
        "environment TRAINER__OPTIMIZER__LR: optimizer.lr: is not a number (value 'fast'); right would be a number",
        "--set optimizer.lr: has no '='; right would be --set section.key=value",
        "--set optimizer.lrr=1: optimizer.lrr: unknown key; did you mean optimizer.lr",
        "--set optimizer.lr=: optimizer.lr: is empty",
        "--set train.train_steps=1.5: train.train_steps: is not an integer (value '1.5')",
        "--set data.train[0]=a: data.train[0]: unknown key; did you mean data.train",
        "--set optimizer.lr.x=1: optimizer.lr.x: unknown key; optimizer.lr is a key; right would be a number",
        "--set optimizer=3: optimizer: is a single value; right would be its keys, {key: value}",
        "--set model.norm=rms: model.norm: is not a choice (value 'rms')", "--set data.train=[a: data.train: ",
        "'[' is never closed", "--set optimizer.beta1=null: optimizer.beta1: is empty"}) {
    EXPECT_NE(fault.find(line), std::string::npos) << line << "\n--- in\n" << fault;
  }
}

TEST(ConfigPrecedence, VariablesThatNearlySetAKeyAreRefused) {
  const std::string file = config_file("good.yaml", valid_text);
  const std::string fault = config_fault([&] {
    read_config({.files = {file},
                 .environment = {{"TRAINER_OPTIMIZER_LR", "1"},
                                 {"TRAINER_MODEL__ROPE_SCALING_FACTOR", "2"},
                                 {"TRAINER_OPTIMIZER_LRR", "1"},
                                 {"TRAINER_RANK", "3"}}});
  });
  for (const char* line :
       {"the configuration has 2 faults:",
        "environment TRAINER_OPTIMIZER_LR: sets nothing; did you mean TRAINER__OPTIMIZER__LR",
        "TRAINER_MODEL__ROPE_SCALING_FACTOR: sets nothing; did you mean TRAINER__MODEL__ROPE_SCALING__FACTOR"}) {
    EXPECT_NE(fault.find(line), std::string::npos) << line << "\n--- in\n" << fault;
  }
}

TEST(ConfigPrecedence, EnvironmentOfTheProcess) {
  ASSERT_EQ(setenv("TRAINER__TRAIN__SEED", "77", 1), 0);
  ASSERT_EQ(setenv("TRAINER_FAULT", "x", 1), 0);
  ASSERT_EQ(setenv("TRAINING__TRAIN__SEED", "78", 1), 0);
  const auto variables = config_environment();
  for (const char* name : {"TRAINER__TRAIN__SEED", "TRAINER_FAULT", "TRAINING__TRAIN__SEED"})
    ASSERT_EQ(unsetenv(name), 0);
  std::map<std::string, std::string> found;  // with what else this process was started with
  for (const auto& [name, value] : variables) {
    EXPECT_TRUE(name.starts_with("TRAINER_")) << name;
    found[name] = value;
  }
  EXPECT_EQ(found["TRAINER_FAULT"], "x");
  EXPECT_EQ(found["TRAINER__TRAIN__SEED"], "77");
  EXPECT_EQ(read_config({.files = {config_file("e.yaml", valid_text)}, .environment = variables}).train.seed, 77);
}

}  // namespace
}  // namespace trainer
