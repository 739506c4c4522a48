#include "core/config/reader.h"

#include <gtest/gtest.h>

#include <random>

#include "core/config/schema.h"
#include "tests/config/support.h"

namespace trainer {
namespace {

TEST(ConfigReader, DefaultsAndValues) {
  const Config config = valid_config();
  EXPECT_EQ(config.model.hidden_size, 64);
  EXPECT_EQ(config.model.vocab_size, 257);
  EXPECT_EQ(config.model.num_key_value_heads, 0);
  EXPECT_EQ(config.optimizer.lr, 3e-4);
  EXPECT_EQ(config.optimizer.beta2, 0.95);
  EXPECT_EQ(config.data.train, std::vector<std::string>{"a.h5"});
  EXPECT_EQ(config.precision.dtype, Precision::bf16);
}

TEST(ConfigReader, FormsOfTheLearningRate) {
  for (const char* text : {"2e-5", "2.0E-5", "\"2e-5\"", ".00002", "'2e-5'"}) {
    const Config config = config_from_yaml(with_line(12, std::string("  lr: ") + text), "lr");
    EXPECT_EQ(config.optimizer.lr, 2e-5) << text;
    EXPECT_NE(resolved_yaml(config).find("\n  lr: 2.0e-05\n"), std::string::npos) << text;
  }
}

TEST(ConfigReader, FormsOfTheSteps) {
  for (const char* text : {"1000", "1_000", "1e3", "1.0E3", "\"1000\"", "1000  # steps"}) {
    const Config config = config_from_yaml(with_line(10, std::string("  train_steps: ") + text), "steps");
    EXPECT_EQ(config.train.train_steps, 1000) << text;
    EXPECT_NE(resolved_yaml(config).find("\n  train_steps: 1000\n"), std::string::npos) << text;
  }
}

TEST(ConfigReader, YamlThatIsAccepted) {
  const Config config = config_from_yaml(
      "\xef\xbb\xbf---\r\n"
      "# a comment with [ { \" '\r\n"
      "model: {hidden_size: 64, num_layers: 2,\r\n"
      "  num_attention_heads: 4, \"vocab_size\": 257, rope_scaling: {type: linear, factor: 2,},}\r\n"
      "train:\r\n"
      "    seq_length:   64   # trailing\r\n"
      "    global_batch_size:\r\n"
      "      8\r\n"
      "    deterministic: False\r\n"
      "    output_dir: \"a\\tb\\\"c\\u00e9: #[\"\r\n"
      "optimizer:\r\n"
      "eval:\r\n"
      "  # nothing here\r\n"
      "data:\r\n"
      "  train:\r\n"
      "  - it's {plain}[0] a:b#c\r\n"
      "  - 'it''s'\r\n"
      "  -   \"*.h5\"\r\n"
      "  validation: v.h5\r\n"
      "...\r\n"
      "# the end\r\n",
      "forms");
  EXPECT_EQ(config.model.rope_scaling.factor, 2);
  EXPECT_EQ(config.model.vocab_size, 257);
  EXPECT_EQ(config.train.global_batch_size, 8);
  EXPECT_FALSE(config.train.deterministic);
  EXPECT_EQ(config.train.output_dir, "a\tb\"c\xc3\xa9: #[");
  EXPECT_EQ(config.data.train, (std::vector<std::string>{"it's {plain}[0] a:b#c", "it's", "*.h5"}));
  EXPECT_EQ(config.data.validation, std::vector<std::string>{"v.h5"});
}

TEST(ConfigReader, AllFaultsAtOnce) {
  const std::string path = config_file("many.yaml",
                                       "model:\n"
                                       "  hidden_size: 65\n"
                                       "  num_layers: two\n"
                                       "  num_attention_heads: 4\n"
                                       "  intermediate_size: 176\n"
                                       "  vocab_size: 257\n"
                                       "  vocab_size: 258\n"
                                       "train:\n"
                                       "  seq_length: 64\n"
                                       "  lr: 1e-4\n"
                                       "  train_steps: 100\n"
                                       "  train_tokens: 5\n"
                                       "data:\n"
                                       "  train: [a.h5]\n");
  const std::string fault = config_fault([&] {
    read_config({.files = {path, "no/such.yaml"}, .sets = {"model.norm=x"}});
  });
  // A source that cannot be read may hold the missing keys: only what is certain is told.
  EXPECT_NE(fault.find("has 5 faults"), std::string::npos) << fault;
  EXPECT_NE(fault.find("no/such.yaml: cannot be read"), std::string::npos) << fault;

  const std::string whole = config_fault([&] { read_config({.files = {path}, .world_size = 2}); });
  for (const char* line : {
           ":3:15: model.num_layers: is not an integer (value 'two'); right would be an integer from 1 to 100000",
           ":7:3: model.vocab_size: is given twice; first at line 6, column 3",
           ":10:3: train.lr: unknown key; lr belongs to optimizer: did you mean optimizer.lr",
           ":8:1: train.global_batch_size: is missing; right would be an integer at least 1",
           ":4:24: model.num_attention_heads: hidden_size 65 does not divide by num_attention_heads 4; right",
           ":11:16: train.train_steps: train_steps 100, train_tokens 5 and train_epochs 0 are given together",
       }) {
    EXPECT_NE(whole.find(path + line), std::string::npos) << line << "\n--- in\n" << whole;
  }
  EXPECT_NE(whole.find("has 6 faults"), std::string::npos) << whole;
}

TEST(ConfigReader, ResolvedTextIsComplete) {
  Config config = valid_config();
  const std::string text = resolved_yaml(config);
  for (const ConfigItem& item : schema_of(config).items) {
    EXPECT_NE(text.find(item.name() + ":"), std::string::npos) << item.path;
  }
}

/// A random value in range for each key.
void randomise(Config& config, std::mt19937_64& random) {
  static const std::string letters = "abz09 :#'\"\\[]{},&*!|>%@`-?~=\n\t\r\x01\x7f\xc3\xa9";
  const auto text = [&] {
    std::string value;
    for (auto n = random() % 12; n > 0; --n) value += letters[random() % (letters.size() - 2)];
    return random() % 4 == 0 ? value + "\xc3\xa9" : value;
  };
  for (const ConfigItem& item : schema_of(config).items) {
    if (item.is_section()) continue;
    if (auto* flag = std::get_if<bool*>(&*item.value)) **flag = random() % 2 == 0;
    if (auto* integer = std::get_if<std::int64_t*>(&*item.value)) {
      const std::uint64_t up_to =
          item.range.high == unlimited ? std::uint64_t{1} << 62 : static_cast<std::uint64_t>(item.range.high);
      **integer = 1 + static_cast<std::int64_t>(random() % up_to);
    }
    if (auto* real = std::get_if<double*>(&*item.value)) {
      const double share = static_cast<double>((random() >> 12) + 1) / 4503599627370498.0;
      **real = item.range.high == 1 ? share : 1 + share * 1e300;
    }
    if (auto* string = std::get_if<std::string*>(&*item.value)) **string = text();
    if (auto* list = std::get_if<std::vector<std::string>*>(&*item.value)) {
      (*list)->clear();
      for (auto n = random() % 4; n > 0; --n) (*list)->push_back(text());
    }
    if (auto* choice = std::get_if<EnumRef>(&*item.value))
      *choice->index = static_cast<unsigned char>(random() % choice->names.size());
  }
}

TEST(ConfigReader, ResolvedTextReadsBackToTheSameValues) {
  std::mt19937_64 random(11);
  for (int round = 0; round < 200; ++round) {
    Config config;
    randomise(config, random);
    const std::string text = resolved_yaml(config);
    Config back = config_from_yaml(text, "resolved");
    ASSERT_EQ(resolved_yaml(back), text);
    EXPECT_EQ(back.train.output_dir, config.train.output_dir);
    EXPECT_EQ(back.data.train, config.data.train);
    EXPECT_EQ(back.optimizer.lr, config.optimizer.lr);
    EXPECT_EQ(back.train.seed, config.train.seed);
    EXPECT_EQ(back.logging.progress, config.logging.progress);
    const std::string commented = resolved_yaml_with_origins(config, {{"train.seed", "a\nb: [#"}});
    ASSERT_EQ(resolved_yaml(config_from_yaml(commented, "commented")), text);
  }
}

TEST(ConfigReader, OriginsStandBesideTheValues) {
  const std::string path = config_file("origins.yaml", valid_text);
  ConfigOrigins origins;
  Config config = read_config({.files = {path}, .sets = {"optimizer.beta1=0.8"}}, &origins);
  config.model.head_dim = 16;  // as resolve_defaults() does
  const std::string text = resolved_yaml_with_origins(config, origins);
  for (const std::string& line :
       {"  hidden_size: 64  # " + path + ":2:16\n", std::string("  beta1: 0.8  # --set optimizer.beta1=0.8\n"),
        std::string("  beta2: 0.95  # default\n"), std::string("  head_dim: 16  # derived\n")}) {
    EXPECT_NE(text.find(line), std::string::npos) << line << "\n--- in\n" << text;
  }
}

TEST(ConfigReader, WordsOfYaml11AreQuotedWhenWritten) {
  EXPECT_EQ(yaml_text("on"), "\"on\"");
  EXPECT_EQ(yaml_text("No"), "\"No\"");
  EXPECT_EQ(yaml_text("null"), "\"null\"");
  EXPECT_EQ(yaml_text(""), "\"\"");
  EXPECT_EQ(yaml_text("1.5"), "\"1.5\"");
  EXPECT_EQ(yaml_text("runs/a-1.b"), "runs/a-1.b");
  EXPECT_EQ(yaml_text("a\n\"b\\"), "\"a\\x0a\\\"b\\\\\"");
}

}  // namespace
}  // namespace trainer
