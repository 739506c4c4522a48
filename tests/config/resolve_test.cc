#include "core/config/resolve.h"

#include <gtest/gtest.h>

#include "core/runtime/check.h"
#include "tests/config/support.h"

namespace trainer {
namespace {

TEST(ConfigResolve, FillsWhatFollows) {
  Config config = valid_config();
  config.model.intermediate_size = 0;
  config.parallelism.tensor_parallel_size = 2;
  config.parallelism.zero_stage = 1;
  resolve_defaults(config, 8);
  EXPECT_EQ(config.model.num_key_value_heads, 4);
  EXPECT_EQ(config.model.head_dim, 16);
  EXPECT_EQ(config.model.intermediate_size, 256);
  EXPECT_EQ(config.model.max_position_embeddings, 64);
  EXPECT_EQ(config.checkpoint.save_dir, "runs/default/checkpoints");
  EXPECT_EQ(config.parallelism.data_parallel_size, 4);
  EXPECT_EQ(config.parallelism.zero_group_size, 4);
  EXPECT_EQ(zero_size(config.parallelism), 4);
  EXPECT_EQ(accumulation_steps(config), 2);

  const std::string once = resolved_yaml(config);
  resolve_defaults(config, 8);
  EXPECT_EQ(resolved_yaml(config), once);
}

TEST(ConfigResolve, DocumentsTakeTheBuiltInAttentionWhereBitsAreFixed) {
  Config config = valid_config();
  resolve_defaults(config, 1);
  EXPECT_EQ(config.train.attention, AttentionChoice::automatic);
  config.data.intra_document_attention = true;
  config.train.deterministic = false;
  resolve_defaults(config, 1);
  EXPECT_EQ(config.train.attention, AttentionChoice::automatic);
  config.train.deterministic = true;
  resolve_defaults(config, 1);
  EXPECT_EQ(config.train.attention, AttentionChoice::builtin);
}

TEST(ConfigResolve, KeepsWhatIsGiven) {
  Config config = valid_config();
  config.model.num_key_value_heads = 2;
  config.model.head_dim = 32;
  config.model.max_position_embeddings = 128;
  config.checkpoint.save_dir = "elsewhere";
  config.parallelism.data_parallel_size = 3;
  resolve_defaults(config, 0);
  EXPECT_EQ(config.model.num_key_value_heads, 2);
  EXPECT_EQ(config.model.head_dim, 32);
  EXPECT_EQ(config.model.intermediate_size, 176);
  EXPECT_EQ(config.model.max_position_embeddings, 128);
  EXPECT_EQ(config.checkpoint.save_dir, "elsewhere");
  EXPECT_EQ(config.parallelism.data_parallel_size, 3);
  EXPECT_EQ(zero_size(config.parallelism), 1);
}

TEST(ConfigResolve, LeavesTheRanksOpenWhenTheyAreNotKnown) {
  Config config = valid_config();
  resolve_defaults(config, 0);
  EXPECT_EQ(config.parallelism.data_parallel_size, 0);
  EXPECT_THROW(accumulation_steps(config), Error);
}

TEST(ConfigResolve, StepsOfTheRun) {
  Config config = valid_config();  // 8 x 64 = 512 tokens a step
  EXPECT_EQ(total_steps(config, 0), 100);
  config.train.train_steps = 0;
  config.train.train_tokens = 512 * 10;
  EXPECT_EQ(total_steps(config, 0), 10);
  config.train.train_tokens = 512 * 10 + 1;
  EXPECT_EQ(total_steps(config, 0), 11);
  EXPECT_EQ(total_steps(config, 0, 4, 4 * 512), 11) << "goes on with the same batch";
  EXPECT_EQ(total_steps(config, 0, 4, 8 * 512), 4 + 3) << "with batches of half the size";
  EXPECT_EQ(total_steps(config, 0, 12, 12 * 512), 12) << "it is long enough";
  config.train.train_tokens = 0;
  config.train.train_epochs = 2;
  EXPECT_EQ(total_steps(config, 40), 10);
  EXPECT_EQ(total_steps(config, 41), 11);
  config.train.train_epochs = 0.1;
  EXPECT_EQ(total_steps(config, 240), 3);  // 0.1 x 240 is above 24 in float64
  config.train.train_epochs = 1e300;
  const std::string fault = config_fault([&] { total_steps(config, 240); });
  EXPECT_NE(fault.find("train.train_epochs: 1e+300 passes over 240 samples are 3e+301 steps; right would be at most "
                       "18014398509481983 steps"),
            std::string::npos)
      << fault;
}

TEST(ConfigResolve, RotatedElements) {
  ModelConfig model;
  model.head_dim = 96;
  model.rotary_pct = 0.25;
  EXPECT_EQ(rotary_dims(model), 24);
  model.rotary_pct = 1;
  EXPECT_EQ(rotary_dims(model), 96);
}

}  // namespace
}  // namespace trainer
