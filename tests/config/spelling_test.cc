#include "core/config/spelling.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "core/config/schema.h"

namespace trainer {
namespace {

TEST(ConfigSpelling, EditDistance) {
  EXPECT_EQ(edit_distance("", "abc"), 3);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3);
  EXPECT_EQ(edit_distance("lenght", "length"), 1);  // a swap is one edit
  EXPECT_EQ(edit_distance("Seq-Length", "seq_length"), 0);
  EXPECT_EQ(edit_distance("abc", "abc"), 0);
}

TEST(ConfigSpelling, Advice) {
  Config config;
  const Schema schema = schema_of(config);
  const struct {
    const char* section;
    const char* name;
    const char* advice;
  } cases[] = {
      {"train", "seq_lenght", "did you mean train.seq_length"},
      {"train", "lr", "lr belongs to optimizer: did you mean optimizer.lr"},
      {"train", "min_lr_ratio", "min_lr_ratio belongs to lr_scheduler: did you mean lr_scheduler.min_lr_ratio"},
      {"train", "bete1", "did you mean optimizer.beta1"},
      {"train", "learning_rate", "did you mean optimizer.lr"},
      {"model", "n_embd", "did you mean model.hidden_size"},
      {"lr_scheduler", "warmup", "did you mean lr_scheduler.warmup_steps"},
      {"", "optim", "did you mean optimizer"},
      {"", "hidden_size", "hidden_size belongs to model: did you mean model.hidden_size"},
      {"", "rope_scaling", "rope_scaling belongs to model: did you mean model.rope_scaling"},
      {"comm", "interval", "interval belongs to eval: did you mean eval.interval or logging.interval"},
      {"comm", "zzzzzz", "keys of comm: timeout_seconds, overlap, peer_copies"},
  };
  for (const auto& c : cases) EXPECT_EQ(advise_key(schema, c.section, c.name), c.advice) << c.section << "." << c.name;
  EXPECT_TRUE(advise_key(schema, "", "qqqqqqq").starts_with("sections are: model, train, optimizer"));
}

TEST(ConfigSpelling, EverySynonymLeadsToAKey) {
  Config config;
  const Schema schema = schema_of(config);
  for (const auto& [other, ours] : key_synonyms()) {
    EXPECT_NE(schema.find(ours), nullptr) << other << ": " << ours;
    EXPECT_NE(advise_key(schema, "comm", other).find(ours), std::string::npos) << other;
  }
}

TEST(ConfigSpelling, ChoicesByTheirNamesElsewhere) {
  const std::vector<std::string> devices = {"auto", "cpu", "cuda"}, types = {"float64", "float32", "bf16", "fp16"};
  EXPECT_EQ(nearest_choice("gpu", devices), "cuda");
  EXPECT_EQ(nearest_choice("GPU", devices), "cuda");
  EXPECT_EQ(nearest_choice("cdua", devices), "cuda");
  EXPECT_EQ(nearest_choice("cp", devices), "cpu");
  EXPECT_EQ(nearest_choice("float16", types), "fp16");
  EXPECT_EQ(nearest_choice("bfloat16", types), "bf16");
  EXPECT_EQ(nearest_choice("gpu", types), "") << "no choice here";
}

TEST(ConfigSpelling, EverySynonymOfAChoiceLeadsToOne) {
  Config config;
  const Schema schema = schema_of(config);
  for (const Synonym& synonym : choice_synonyms()) {
    const auto offers = [&](const ConfigItem& item) {
      const auto* choice = item.is_section() ? nullptr : std::get_if<EnumRef>(&*item.value);
      return choice != nullptr &&
             std::find(choice->names.begin(), choice->names.end(), std::string(synonym.ours)) != choice->names.end();
    };
    EXPECT_TRUE(std::any_of(schema.items.begin(), schema.items.end(), offers)) << synonym.ours;
  }
}

}  // namespace
}  // namespace trainer
