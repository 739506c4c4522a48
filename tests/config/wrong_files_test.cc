#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <ostream>
#include <vector>

#include "tests/config/support.h"

namespace trainer {
namespace {

/// A line of the valid file replaced, and parts of the one fault that must follow. The first part starts right after
/// the file's name.
struct WrongLine {
  const char* name;
  int line;
  const char* text;
  std::vector<const char*> parts;
};

std::ostream& operator<<(std::ostream& stream, const WrongLine& c) {
  return stream << c.line << ": " << c.text;
}

class ConfigWrongLine : public testing::TestWithParam<WrongLine> {};

TEST_P(ConfigWrongLine, IsRefused) {
  const WrongLine& c = GetParam();
  const std::string path = config_file("wrong.yaml", with_line(c.line, c.text));
  const std::string fault = config_fault([&] { read_config({.files = {path}}); });
  EXPECT_TRUE(fault.starts_with("the configuration has a fault:\n" + path + c.parts[0])) << c.parts[0] << "\n--- in\n"
                                                                                         << fault;
  for (const char* part : c.parts) EXPECT_NE(fault.find(part), std::string::npos) << part << "\n--- in\n" << fault;
}

const std::vector<WrongLine> wrong_lines = {
    // Names.
    {"unknown_key", 12, "  lrr: 3e-4", {":12:3: optimizer.lrr: unknown key; did you mean optimizer.lr"}},
    {"key_of_another_section",
     10,
     "  train_steps: 100\n  lr: 1",
     {":11:3: train.lr: unknown key; lr belongs to optimizer: did you mean optimizer.lr"}},
    {"key_at_the_top",
     7,
     "seed: 3\ntrain:",
     {":7:1: seed: unknown section or key; seed belongs to train: did you mean train.seed"}},
    {"unknown_section", 11, "optimiser:", {":11:1: optimiser: unknown section or key; did you mean optimizer"}},
    {"capital_letters", 12, "  LR: 3e-4", {":12:3: optimizer.LR: unknown key; did you mean optimizer.lr"}},
    {"dash_for_underscore",
     12,
     "  weight-decay: 0",
     {":12:3: optimizer.weight-decay: unknown key; did you mean optimizer.weight_decay"}},
    {"name_of_another_trainer",
     12,
     "  learning_rate: 3e-4",
     {":12:3: optimizer.learning_rate: unknown key; did you mean optimizer.lr"}},
    {"dotted_key", 12, "  rope_scaling.factor: 2", {":12:3: optimizer.rope_scaling.factor: unknown key"}},
    {"dotted_section", 11, "model.rope_scaling:", {":11:1: model.rope_scaling: unknown"}},
    {"nested_unknown_key",
     6,
     "  vocab_size: 257\n  rope_scaling:\n    fctor: 2",
     {":8:5: model.rope_scaling.fctor: unknown key; did you mean model.rope_scaling.factor"}},
    {"duplicate_key",
     3,
     "  num_layers: 2\n  num_layers: 3",
     {":4:3: model.num_layers: is given twice; first at line 3, column 3"}},
    {"duplicate_section",
     11,
     "train:\n  seed: 1\noptimizer:",
     {":11:1: train: is given twice; first at line 7, column 1"}},
    {"missing_key", 6, "", {":1:1: model.vocab_size: is missing; right would be an integer at least 1"}},
    // Integers.
    {"octal",
     10,
     "  train_steps: 010",
     {":10:16: train.train_steps: starts with a zero", "(value '010')", "right would be an integer at least 0"}},
    {"hexadecimal", 10, "  train_steps: 0x10", {":10:16: train.train_steps: is not a decimal number (value '0x10')"}},
    {"fraction_for_integer", 10, "  train_steps: 1.5", {":10:16: train.train_steps: is not an integer (value '1.5')"}},
    {"text_for_integer", 10, "  train_steps: many", {":10:16: train.train_steps: is not an integer (value 'many')"}},
    {"flag_for_integer", 10, "  train_steps: true", {":10:16: train.train_steps: is not an integer (value 'true')"}},
    {"integer_too_large",
     10,
     "  train_steps: 1e400",
     {":10:16: train.train_steps: does not fit in 64 bits (value '1e400')"}},
    {"negative_integer",
     10,
     "  train_steps: -1",
     {":10:16: train.train_steps: is out of range (value '-1')", "the nearest is 0"}},
    {"zero_size",
     3,
     "  num_layers: 0",
     {":3:15: model.num_layers: is out of range (value '0')", "right would be an integer from 1 to 100000",
      "the nearest is 1"}},
    {"size_too_large",
     3,
     "  num_layers: 1e12",
     {":3:15: model.num_layers: is out of range (value '1e12')", "the nearest is 100000"}},
    {"pipeline_parallel",
     13,
     "parallelism: {pipeline_parallel_size: 2}\ndata:",
     {":13:39: parallelism.pipeline_parallel_size: is out of range (value '2'); right would be 1"}},
    {"zero_stage",
     13,
     "parallelism:\n  zero_stage: 4\ndata:",
     {":14:15: parallelism.zero_stage: is out of range (value '4'); right would be an integer from 0 to 3; the nearest "
      "is 3"}},
    // Numbers.
    {"number_too_large",
     12,
     "  lr: 1e400",
     {":12:7: optimizer.lr: does not fit in float64 (value '1e400'); right would be a number at least 0"}},
    {"number_too_small", 12, "  lr: 1e-400", {":12:7: optimizer.lr: does not fit in float64 (value '1e-400')"}},
    {"nan", 12, "  lr: nan", {":12:7: optimizer.lr: is not a finite number (value 'nan')"}},
    {"infinite", 12, "  lr: .inf", {":12:7: optimizer.lr: is not a finite number (value '.inf')"}},
    {"negative_number",
     12,
     "  lr: -1",
     {":12:7: optimizer.lr: is out of range (value '-1'); right would be a number at least 0"}},
    {"text_for_number", 12, "  lr: abc", {":12:7: optimizer.lr: is not a number (value 'abc')"}},
    {"comma_for_point", 12, "  lr: 0,001", {":12:7: optimizer.lr: is not a number (value '0,001')"}},
    {"number_with_unit", 12, "  lr: 3e-4 per step", {":12:7: optimizer.lr: is not a number (value '3e-4 per step')"}},
    {"beta_of_one",
     12,
     "  beta2: 1",
     {":12:10: optimizer.beta2: is out of range (value '1'); right would be a number at least 0 and below 1"}},
    {"dropout_of_one",
     6,
     "  vocab_size: 257\n  hidden_dropout: 1.0",
     {":7:19: model.hidden_dropout: is out of range (value '1.0')"}},
    // Other types.
    {"null_value", 12, "  lr:", {":12:3: optimizer.lr: is empty; right would be a number at least 0"}},
    {"tilde", 12, "  lr: ~", {":12:3: optimizer.lr: is empty"}},
    {"list_for_number", 12, "  lr: [3e-4]", {":12:7: optimizer.lr: is a list; right would be a number at least 0"}},
    {"map_for_number",
     12,
     "  lr: {a: 1}",
     {":12:7: optimizer.lr: is a map of keys; right would be a number at least 0"}},
    {"yes_for_true",
     12,
     "  nesterov: yes",
     {":12:13: optimizer.nesterov: is neither true nor false (value 'yes'); right would be true or false"}},
    {"number_for_flag", 12, "  nesterov: 1", {":12:13: optimizer.nesterov: is neither true nor false (value '1')"}},
    {"unknown_choice",
     12,
     "  name: adam",
     {":12:9: optimizer.name: is not a choice (value 'adam'); right would be one of adamw, sgd; did you mean adamw"}},
    {"choice_in_capitals",
     12,
     "  name: AdamW",
     {":12:9: optimizer.name: is not a choice (value 'AdamW')", "did you mean adamw"}},
    {"map_for_list", 14, "  train: {a: b}", {":14:10: data.train: is a map of keys; right would be a list of texts"}},
    {"list_in_list",
     14,
     "  train: [a, [b]]",
     {":14:10: data.train: entry 2 is a list; right would be a list of texts"}},
    {"number_for_section",
     11,
     "comm: 3\noptimizer:",
     {":11:7: comm: is a single value; right would be its keys, indented below it"}},
    {"list_for_section",
     11,
     "comm:\n- timeout_seconds: 3\noptimizer:",
     {":12:1: comm: is a list; right would be its keys"}},
    {"no_blank_after_colon", 12, "  lr:3e-4", {":12:3: optimizer: is a single value; right would be its keys"}},
    // YAML.
    {"tab", 12, "\tlr: 3e-4", {":12:1: is indented with a tab; right would be spaces"}},
    {"merge_key", 12, "  <<: {lr: 3e-4}", {":12:3: merge keys (<<) are not used here"}},
    {"anchor", 12, "  lr: &rate 3e-4", {":12:7: '&' stands for an anchor in YAML, which is not used here"}},
    {"alias", 12, "  lr: *rate", {":12:7: '*' stands for an alias in YAML", "quotes around a text that starts so"}},
    {"tag", 12, "  lr: !!float 3e-4", {":12:7: '!' stands for a tag in YAML"}},
    {"directive", 1, "%YAML 1.2\n---\nmodel:", {":1:1: '%' stands for a reserved meaning in YAML"}},
    {"block_text",
     10,
     "  train_steps: 100\n  output_dir: |\n    runs",
     {":11:15: '|' stands for a block text in YAML"}},
    {"explicit_key", 12, "  ? lr\n  : 3e-4", {":12:3: '?' stands for an explicit key in YAML"}},
    {"two_documents",
     11,
     "---\noptimizer:",
     {":11:1: a second document starts here; right would be one document in a file"}},
    {"after_the_end", 11, "...\noptimizer:", {":12:1: a second document starts here"}},
    {"two_colons", 12, "  lr: 3e-4: 5", {":12:11: a second ': ' in one entry"}},
    {"unclosed_quote", 12, "  lr: \"3e-4", {":12:7: the quoted text is not closed on its line"}},
    {"unclosed_list", 14, "  train: [a", {":14:10: '[' is never closed"}},
    {"unclosed_map",
     12,
     "  lr: {a: 1",
     {":13:1: a text follows another in the '{' of 12:7; right would be a comma, or the closing bracket"}},
    {"crossed_brackets", 14, "  train: [a, {b: c]}", {":14:19: ']' closes the '{' of 14:14"}},
    {"stray_bracket", 14, "  train: ]", {":14:10: ']' stands for a list or map in brackets, and none is open"}},
    {"text_after_list", 14, "  train: [a] b", {":14:14: something follows a closing bracket"}},
    {"missing_comma",
     14,
     "  train: [\"a\" \"b\"]",
     {":14:15: a text follows another in the '[' of 14:10; right would be a comma"}},
    {"text_after_quotes",
     12,
     "  lr: '3e-4' 5",
     {":12:14: a text follows another; right would be a new line between them"}},
    {"empty_entry", 14, "  train: [a,, b]", {":14:13: an entry is missing before the comma"}},
    {"colon_without_key", 14, "  train: [:]", {":14:11: ':' without a key before it"}},
    {"dash_in_brackets", 14, "  train: [- a]", {":14:11: '-' in a bracketed list"}},
    {"dash_after_key", 14, "  train: - a", {":14:10: '-' starts a list on its own line"}},
    {"wrong_indentation", 12, "  lr: 3e-4\n beta1: 0.9", {":13:2: is not valid YAML"}},
    {"missing_colon", 8, "  seq_length 64", {":9:20: is not valid YAML"}},
    {"list_as_key", 12, "  [a]: 3", {":12:6: something follows a closing bracket"}},
    {"control_character", 12, "  lr: 3e-4\x07", {":12:11: has the control character 0x07"}},
    {"lone_carriage_return", 12, "  lr: 3e-4\r  beta1: 0.8", {":12:11: has the control character 0x0d"}},
    {"latin_1", 14, "  train: [caf\xe9]", {":14:14: is not valid UTF-8 (byte 0xe9)"}},
    {"overlong_utf_8", 14, "  train: [\xc0\xaf]", {":14:11: is not valid UTF-8"}},
    {"nul_in_a_text", 14, "  train: \"a\\0b\"", {":14:10: data.train: entry 1 has a NUL character"}},
    // Between keys.
    {"no_length_of_the_run",
     10,
     "",
     {":7:1: train.train_steps: the length of the run is missing; right would be one of train_steps, train_tokens and "
      "train_epochs"}},
    {"two_lengths_of_the_run",
     10,
     "  train_steps: 100\n  train_epochs: 1",
     {":10:16: train.train_steps: train_steps 100, train_tokens 0 and train_epochs 1 are given together"}},
    {"heads",
     4,
     "  num_attention_heads: 6",
     {":4:24: model.num_attention_heads: hidden_size 64 does not divide by num_attention_heads 6; right would be 4 or "
      "8 heads"}},
};

INSTANTIATE_TEST_SUITE_P(Lines, ConfigWrongLine, testing::ValuesIn(wrong_lines),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(ConfigWrongFile, Contents) {
  const struct {
    std::string text;
    const char* fault;
  } cases[] = {
      {"", ": is empty; right would be sections and keys"},
      {"# nothing but a comment\n\n", ": is empty"},
      {"---\n", ": is empty"},
      {"---\n...\n", ": is empty"},
      {"just text\n", ":1:1: is a single value; right would be sections with keys"},
      {"- a\n- b\n", ":1:1: is a list; right would be sections with keys"},
      {std::string("model:\n  hidden\0size: 3\n", 24), ":2:9: has a NUL byte"},
      {std::string("\xff\xfem\0o\0d\0", 8), ":1:1: is UTF-16; right would be UTF-8"},
      {std::string("\xfe\xff\0m\0o\0d", 8), ":1:1: is UTF-16"},
      {std::string("m\0o\0d\0", 6), ":1:2: has a NUL byte"},
      {std::string((1U << 20) + 1, '#'), ": has 1048577 bytes or more; right would be at most 1048576"},
  };
  for (const auto& c : cases) {
    const std::string path = config_file("contents.yaml", c.text);
    const std::string fault = config_fault([&] { read_config({.files = {path}}); });
    EXPECT_NE(fault.find(path + c.fault), std::string::npos) << c.fault << "\n--- in\n" << fault;
  }
}

TEST(ConfigWrongFile, Paths) {
  const std::string file = config_file("file.yaml", valid_text);
  const std::string folder = std::filesystem::path(file).parent_path();
  const struct {
    std::string path;
    const char* fault;
  } cases[] = {
      {folder, ": is a folder; right would be a YAML file"},
      {folder + "/none.yaml", ": cannot be read: No such file or directory"},
      {file + "/below", ": cannot be read: Not a directory"},
      {"/dev/null", ": is not a regular file"},
      {"", ": cannot be read: No such file or directory"},
      {std::string(5000, 'a'), ": cannot be read: File name too long"},
  };
  for (const auto& c : cases) {
    const std::string fault = config_fault([&] { read_config({.files = {c.path}}); });
    EXPECT_NE(fault.find(c.fault), std::string::npos) << c.fault << "\n--- in\n" << fault;
  }
}

TEST(ConfigWrongFile, UnreadableFile) {
  const std::string path = config_file("unreadable.yaml", valid_text);
  std::filesystem::permissions(path, std::filesystem::perms::none);
  const bool is_root = geteuid() == 0;  // root may read everything: be someone else for a moment
  constexpr uid_t nobody = 65534;
  if (is_root) {
    ASSERT_EQ(seteuid(nobody), 0);
  }
  const std::string fault = config_fault([&] { read_config({.files = {path}}); });
  if (is_root) {
    ASSERT_EQ(seteuid(0), 0);
  }
  EXPECT_NE(fault.find(path + ": cannot be read: Permission denied"), std::string::npos) << fault;
}

TEST(ConfigWrongFile, MessagesCarryNoControlCharactersAndStayShort) {
  const std::string path = config_file("long.yaml", with_line(12, "  lr: \"\\e[31m" + std::string(100000, 'x') + "\""));
  const std::string fault = config_fault([&] { read_config({.files = {path}}); });
  EXPECT_LT(fault.size(), 1000U);
  EXPECT_EQ(fault.find('\x1b'), std::string::npos);
  EXPECT_NE(fault.find("\\x1b[31mxxx"), std::string::npos) << fault;
}

}  // namespace
}  // namespace trainer
