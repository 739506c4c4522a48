#include "core/config/document.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "core/config/schema.h"
#include "tests/config/support.h"
#include "tests/support/files.h"

namespace trainer {
namespace {

TEST(ConfigDocument, FileOfTheDocumentationIsCurrent) {
  const std::string expected = config_markdown();
  if (std::getenv("TRAINER_UPDATE_DOCS") != nullptr) std::ofstream(CONFIG_DOCS_FILE, std::ios::binary) << expected;
  EXPECT_TRUE(read_file(CONFIG_DOCS_FILE) == expected)
      << CONFIG_DOCS_FILE << " is not current: run this test with TRAINER_UPDATE_DOCS=1";
}

TEST(ConfigDocument, HelpAndTablesNameEveryKey) {
  Config config;
  const std::string markdown = config_markdown();
  const std::string sections = config_help("");
  for (const ConfigItem& item : schema_of(config).items) {
    EXPECT_NE(std::string(item.doc), "") << item.path;
    if (item.is_section()) {
      EXPECT_NE(markdown.find("\n## " + item.path + "\n"), std::string::npos) << item.path;
      EXPECT_NE(sections.find("  " + item.path), std::string::npos) << item.path;
    } else {
      EXPECT_NE(markdown.find("\n| `" + item.name() + "` | "), std::string::npos) << item.path;
      EXPECT_NE(config_help(item.section()).find("\n  " + item.name() + ": "), std::string::npos) << item.path;
      EXPECT_NE(config_help(item.path).find("  " + item.name() + ": "), std::string::npos) << item.path;
    }
  }
}

TEST(ConfigDocument, HelpOfAKey) {
  EXPECT_EQ(config_help("optimizer.beta1"),
            "  beta1: number, at least 0 and below 1; default 0.9\n      AdamW: decay of the first moment.\n");
  const std::string fault = config_fault([] { config_help("optimizer.lrr"); });
  EXPECT_NE(fault.find("did you mean optimizer.lr"), std::string::npos) << fault;
}

TEST(ConfigDocument, SchemaDescribesEveryKey) {
  const nlohmann::json schema = nlohmann::json::parse(config_json_schema());
  Config config;
  std::size_t keys = 0;
  for (const ConfigItem& item : schema_of(config).items) {
    std::string pointer;
    std::stringstream parts(item.path);
    for (std::string part; std::getline(parts, part, '.');) pointer += "/properties/" + part;
    ASSERT_TRUE(schema.contains(nlohmann::json::json_pointer(pointer))) << item.path;
    const nlohmann::json& property = schema.at(nlohmann::json::json_pointer(pointer));
    EXPECT_EQ(property.at("description"), item.doc) << item.path;
    EXPECT_EQ(property.contains("default"), !item.is_section() && !item.required) << item.path;
    keys += item.is_section() ? 0 : 1;
  }
  EXPECT_GT(keys, 80U);
  const nlohmann::json& optimizer = schema.at("properties").at("optimizer");
  EXPECT_EQ(optimizer.at("additionalProperties"), false);
  EXPECT_EQ(optimizer.at("properties").at("beta1").at("exclusiveMaximum"), 1);
  EXPECT_EQ(optimizer.at("properties").at("name").at("enum"), nlohmann::json({"adamw", "sgd"}));
  EXPECT_EQ(schema.at("properties").at("train").at("required"), nlohmann::json({"seq_length", "global_batch_size"}));
}

}  // namespace
}  // namespace trainer
