#include "core/config/validate.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <ostream>

#include "core/runtime/check.h"
#include "tests/config/support.h"

namespace trainer {
namespace {

std::string joined(const std::vector<std::string>& lines) {
  return fmt::format("{}", fmt::join(lines, "\n"));
}

/// A change of the valid configuration, and the one fault that it brings.
struct Case {
  const char* name;
  std::function<void(Config&)> change;
  int world_size;
  const char* fault;  // "": none
};

std::ostream& operator<<(std::ostream& stream, const Case& c) {
  return stream << c.name;
}

class ConfigValidate : public testing::TestWithParam<Case> {};

TEST_P(ConfigValidate, OneFault) {
  Config config = valid_config();
  GetParam().change(config);
  const std::vector<std::string> faults = validate(config, GetParam().world_size);
  const std::string expected = GetParam().fault;
  if (expected.empty()) {
    EXPECT_TRUE(faults.empty()) << joined(faults);
    EXPECT_NO_THROW(check(config, GetParam().world_size));
    return;
  }
  ASSERT_EQ(faults.size(), 1U) << joined(faults);
  EXPECT_EQ(faults[0], expected);
  EXPECT_NE(config_fault([&] { check(config, GetParam().world_size); }).find(expected), std::string::npos);
}

std::function<void(Config&)> heads_and_tp(int heads, int kv, int tp) {
  return [=](Config& c) {
    c.model.num_attention_heads = heads;
    c.model.num_key_value_heads = kv;
    c.model.head_dim = 8;
    c.model.intermediate_size = 48;
    c.parallelism.tensor_parallel_size = tp;
  };
}

const std::vector<Case> cases = {
    {"valid", [](Config&) {}, 0, ""},
    {"valid_on_8_ranks", [](Config&) {}, 8, ""},

    // 8 heads, 2 KV heads: TP 2 splits them, TP 4 and 8 replicate them, TP 3 does not divide.
    {"kv_split", heads_and_tp(8, 2, 2), 2, ""},
    {"kv_replicated", heads_and_tp(8, 2, 4), 4, ""},
    {"kv_replicated_more", heads_and_tp(8, 2, 8), 8, ""},
    {"heads_8_tp_3", heads_and_tp(8, 2, 3), 0,
     "parallelism.tensor_parallel_size: num_attention_heads 8 does not divide by tensor_parallel_size 3; right would "
     "be tensor_parallel_size 2 or 4"},
    {"heads_6_tp_4", heads_and_tp(6, 6, 4), 0,
     "parallelism.tensor_parallel_size: num_attention_heads 6 does not divide by tensor_parallel_size 4; right would "
     "be tensor_parallel_size 3 or 2"},
    {"heads_6_tp_4_on_4_ranks", heads_and_tp(6, 6, 4), 4,
     "parallelism.tensor_parallel_size: num_attention_heads 6 does not divide by tensor_parallel_size 4; right would "
     "be tensor_parallel_size 2 or 1"},
    {"kv_3_tp_2", heads_and_tp(12, 3, 2), 0,
     "parallelism.tensor_parallel_size: num_key_value_heads 3 and tensor_parallel_size 2 do not divide one another; "
     "right would be tensor_parallel_size 1 or 3"},
    {"kv_4_heads_6", heads_and_tp(6, 4, 1), 0,
     "model.num_key_value_heads: num_attention_heads 6 does not divide by num_key_value_heads 4; right would be 3 or "
     "2"},
    {"more_kv_heads_than_heads", heads_and_tp(4, 8, 1), 0,
     "model.num_key_value_heads: num_attention_heads 4 does not divide by num_key_value_heads 8; right would be 4 or "
     "2"},
    {"ffn_1000_tp_3",
     [](Config& c) {
       heads_and_tp(6, 6, 3)(c);
       c.model.intermediate_size = 1000;
     },
     0,
     "parallelism.tensor_parallel_size: intermediate_size 1000 does not divide by tensor_parallel_size 3; right would "
     "be tensor_parallel_size 2 or 1, or intermediate_size 999 or 1002"},
    {"hidden_by_heads", [](Config& c) { c.model.num_attention_heads = 6; }, 0,
     "model.num_attention_heads: hidden_size 64 does not divide by num_attention_heads 6; right would be 4 or 8 heads, "
     "or head_dim given"},
    {"hidden_by_heads_with_head_dim",
     [](Config& c) {
       c.model.num_attention_heads = 6;
       c.model.head_dim = 16;
     },
     0, ""},

    {"head_dim_odd", [](Config& c) { c.model.head_dim = 15; }, 0,
     "model.head_dim: RoPE turns pairs of elements and needs an even head_dim, not 15; right would be 14 or 16"},
    {"head_dim_odd_without_rope",
     [](Config& c) {
       c.model.head_dim = 15;
       c.model.position = Position::learned;
     },
     0, ""},
    {"derived_head_dim_odd", [](Config& c) { c.model.hidden_size = 36; }, 0,
     "model.num_attention_heads: RoPE turns pairs of elements and needs an even head_dim, not 9 (hidden_size 36 / "
     "num_attention_heads 4); right would be 8 or 10"},
    {"rotary_odd", [](Config& c) { c.model.rotary_pct = 0.2; }, 0,
     "model.rotary_pct: rotary_pct 0.2 of head_dim 16 rotates 3 elements, which must be even and not 0; right would be "
     "0.125 (2 elements)"},
    {"rotary_none", [](Config& c) { c.model.rotary_pct = 0.01; }, 0,
     "model.rotary_pct: rotary_pct 0.01 of head_dim 16 rotates 0 elements, which must be even and not 0; right would "
     "be 0.125 (2 elements)"},
    {"rotary_quarter", [](Config& c) { c.model.rotary_pct = 0.25; }, 0, ""},
    {"positions", [](Config& c) { c.model.max_position_embeddings = 32; }, 0,
     "train.seq_length: seq_length 64 is above max_position_embeddings 32; right would be a seq_length of at most 32, "
     "or more positions"},
    {"learned_positions",
     [](Config& c) {
       c.model.position = Position::learned;
       c.model.max_position_embeddings = 63;
     },
     0,
     "train.seq_length: seq_length 64 is above max_position_embeddings 63; right would be a seq_length of at most 63, "
     "or more positions"},
    {"no_positions",
     [](Config& c) {
       c.model.position = Position::none;
       c.model.max_position_embeddings = 1;
     },
     0, ""},
    {"scaling_without_rope",
     [](Config& c) {
       c.model.position = Position::learned;
       c.model.rope_scaling.type = RopeScalingType::linear;
     },
     0, "model.rope_scaling.type: RoPE scaling 'linear' without RoPE; right would be type none, or position rope"},
    {"scaling_factor_alone", [](Config& c) { c.model.rope_scaling.factor = 8; }, 0,
     "model.rope_scaling.factor: factor 8 has no effect with type none; right would be type linear or llama3"},
    {"llama3_factors",
     [](Config& c) {
       c.model.rope_scaling.type = RopeScalingType::llama3;
       c.model.rope_scaling.low_freq_factor = 4;
     },
     0,
     "model.rope_scaling.low_freq_factor: low_freq_factor 4 is not below high_freq_factor 4; right would be 1 and 4, "
     "as in Llama 3.1"},
    {"swiglu_without_size", [](Config& c) { c.model.intermediate_size = 0; }, 0,
     "model.intermediate_size: swiglu needs an intermediate_size; right would be 192 (8/3 x hidden_size 64, as in "
     "Llama, rounded up to a multiple of 64)"},
    {"gelu_without_size",
     [](Config& c) {
       c.model.intermediate_size = 0;
       c.model.activation = Activation::gelu;
     },
     0, ""},

    {"documents", [](Config& c) { c.data.intra_document_attention = true; }, 0, ""},
    {"documents_with_dropout",
     [](Config& c) {
       c.data.intra_document_attention = true;
       c.model.attention_dropout = 0.1;
     },
     0,
     "data.intra_document_attention: attention_dropout is 0.1, whose random numbers are counted by sequences of "
     "seq_length tokens, and a document is a sequence of its own length; right would be attention_dropout 0, or "
     "intra_document_attention false"},
    {"documents_with_cudnn",
     [](Config& c) {
       c.data.intra_document_attention = true;
       c.train.attention = AttentionChoice::cudnn;
     },
     0,
     "train.attention: cuDNN's attention within documents does not give the same bits in every run; right would be "
     "builtin or auto, or deterministic false"},
    {"documents_with_cudnn_of_any_bits",
     [](Config& c) {
       c.data.intra_document_attention = true;
       c.train.attention = AttentionChoice::cudnn;
       c.train.deterministic = false;
     },
     0, ""},
    {"documents_with_cudnn_and_odd_heads",
     [](Config& c) {
       c.data.intra_document_attention = true;
       c.train.attention = AttentionChoice::cudnn;
       c.train.deterministic = false;
       c.model.head_dim = 40;
     },
     0,
     "train.attention: cuDNN's attention within documents wants heads that divide by 16, and head_dim is 40; right "
     "would "
     "be builtin or auto"},

    {"sequence_parallel_on_one_rank", [](Config& c) { c.parallelism.sequence_parallel = true; }, 0, ""},
    {"sequence_parallel",
     [](Config& c) {
       c.parallelism.sequence_parallel = true;
       c.parallelism.tensor_parallel_size = 4;
       c.train.seq_length = 62;
     },
     0,
     "train.seq_length: sequence_parallel splits micro_batch_size 1 x seq_length 62 = 62 tokens, which do not divide "
     "by tensor_parallel_size 4; right would be seq_length 60 or 64"},
    {"sequence_parallel_over_samples",
     [](Config& c) {
       c.parallelism.sequence_parallel = true;
       c.parallelism.tensor_parallel_size = 4;
       c.train.micro_batch_size = 2;
       c.train.seq_length = 62;
     },
     0, ""},

    {"ranks_by_tp", [](Config& c) { c.parallelism.tensor_parallel_size = 4; }, 6,
     "parallelism.tensor_parallel_size: tensor_parallel_size 4 needs 4 ranks or a multiple of that, and the job has 6 "
     "ranks; right would be 4 ranks ('mpirun -np 4 trainer ...'), or tensor_parallel_size 2 or 1"},
    {"ranks_of_one_process", [](Config& c) { c.parallelism.tensor_parallel_size = 2; }, 1,
     "parallelism.tensor_parallel_size: tensor_parallel_size 2 needs 2 ranks or a multiple of that, and the job has 1 "
     "rank; right would be 2 ranks ('mpirun -np 2 trainer ...'), or tensor_parallel_size 1"},
    {"ranks_given",
     [](Config& c) {
       c.parallelism.tensor_parallel_size = 2;
       c.parallelism.data_parallel_size = 2;
     },
     4, ""},
    {"ranks_too_many",
     [](Config& c) {
       c.parallelism.tensor_parallel_size = 2;
       c.parallelism.data_parallel_size = 2;
     },
     8,
     "parallelism.data_parallel_size: tensor_parallel_size 2 x data_parallel_size 2 needs 4 ranks, and the job has 8 "
     "ranks; right would be 4 ranks ('mpirun -np 4 trainer ...'), or data_parallel_size 0 to follow the job"},
    {"ranks_too_few",
     [](Config& c) {
       c.parallelism.tensor_parallel_size = 2;
       c.parallelism.data_parallel_size = 2;
     },
     1,
     "parallelism.data_parallel_size: tensor_parallel_size 2 x data_parallel_size 2 needs 4 ranks, and the job has 1 "
     "rank; right would be 4 ranks ('mpirun -np 4 trainer ...')"},
    {"ranks_not_known",
     [](Config& c) {
       c.parallelism.tensor_parallel_size = 2;
       c.parallelism.data_parallel_size = 2;
     },
     0, ""},
    {"zero_group",
     [](Config& c) {
       c.parallelism.zero_stage = 1;
       c.parallelism.zero_group_size = 3;
     },
     8,
     "parallelism.zero_group_size: data_parallel_size 8 does not divide by zero_group_size 3; right would be 2 or 4, "
     "or 0 for all ranks"},
    {"resident_layers",
     [](Config& c) {
       c.parallelism.zero_stage = 3;
       c.parallelism.zero_resident_layers = c.model.num_layers;
     },
     0, ""},
    {"resident_layers_without_zero_3",
     [](Config& c) {
       c.parallelism.zero_stage = 2;
       c.parallelism.zero_resident_layers = 1;
     },
     0,
     "parallelism.zero_resident_layers: under zero_stage 2 all layers are resident; right would be 0, or zero_stage 3"},
    {"more_resident_layers_than_there_are",
     [](Config& c) {
       c.model.num_layers = 2;
       c.parallelism.zero_stage = 3;
       c.parallelism.zero_resident_layers = 3;
     },
     0, "parallelism.zero_resident_layers: 3 of 2 layers; right would be at most 2, or zero_stage 2 for all"},
    {"zero_group_divides",
     [](Config& c) {
       c.parallelism.zero_stage = 1;
       c.parallelism.zero_group_size = 4;
     },
     8, ""},
    {"global_batch",
     [](Config& c) {
       c.train.micro_batch_size = 2;
       c.train.global_batch_size = 14;
     },
     4,
     "train.global_batch_size: global_batch_size 14 does not divide by micro_batch_size 2 x data_parallel_size 4 = 8; "
     "right would be global_batch_size 8 or 16"},
    {"global_batch_below_one_micro_batch", [](Config& c) { c.train.micro_batch_size = 16; }, 0,
     "train.global_batch_size: global_batch_size 8 does not divide by micro_batch_size 16 x data_parallel_size 1 = 16; "
     "right would be global_batch_size 16"},

    {"warmup", [](Config& c) { c.lr_scheduler.warmup_steps = 101; }, 0,
     "lr_scheduler.warmup_steps: warmup_steps 101 is above the 100 steps of the run; right would be at most 100"},
    {"warmup_in_tokens",
     [](Config& c) {
       c.train.train_steps = 0;
       c.train.train_tokens = 512 * 10;
       c.lr_scheduler.warmup_steps = 11;
     },
     0, "lr_scheduler.warmup_steps: warmup_steps 11 is above the 10 steps of the run; right would be at most 10"},
    {"warmup_in_epochs",
     [](Config& c) {
       c.train.train_steps = 0;
       c.train.train_epochs = 1;
       c.lr_scheduler.warmup_steps = 1000;
     },
     0, ""},
    {"cosine_decay",
     [](Config& c) {
       c.lr_scheduler.warmup_steps = 50;
       c.lr_scheduler.decay_steps = 50;
     },
     0,
     "lr_scheduler.decay_steps: decay_steps 50 is the step of the minimum and must be above warmup_steps 50; right "
     "would be 51 or more, or 0 for the last step"},
    {"wsd_without_decay", [](Config& c) { c.lr_scheduler.name = ScheduleName::wsd; }, 0,
     "lr_scheduler.decay_steps: wsd decays over the last decay_steps, which is 0; right would be the length of the "
     "decay, for example 10, or name constant"},
    {"wsd_too_long",
     [](Config& c) {
       c.lr_scheduler.name = ScheduleName::wsd;
       c.lr_scheduler.warmup_steps = 20;
       c.lr_scheduler.decay_steps = 81;
     },
     0,
     "lr_scheduler.decay_steps: warmup_steps 20 and decay_steps 81 together are above the 100 steps of the run; right "
     "would be decay_steps of at most 80"},
    {"wsd",
     [](Config& c) {
       c.lr_scheduler.name = ScheduleName::wsd;
       c.lr_scheduler.warmup_steps = 20;
       c.lr_scheduler.decay_steps = 80;
     },
     0, ""},

    {"cudnn_with_dropout",
     [](Config& c) {
       c.train.attention = AttentionChoice::cudnn;
       c.model.attention_dropout = 0.1;
     },
     0,
     "train.attention: cuDNN's attention has no dropout on probabilities, and attention_dropout is 0.1; right would be "
     "builtin or auto, or attention_dropout 0"},
    {"cudnn_in_float32",
     [](Config& c) {
       c.train.attention = AttentionChoice::cudnn;
       c.precision.dtype = Precision::float32;
     },
     0,
     "train.attention: cuDNN's attention has 16-bit types only; right would be builtin or auto, or precision.dtype "
     "bf16 "
     "or fp16"},
    {"cudnn_with_wide_heads",
     [](Config& c) {
       c.train.attention = AttentionChoice::cudnn;
       c.model.head_dim = 136;
     },
     0,
     "train.attention: cuDNN's attention has heads of up to 128 that divide by 8, and head_dim is 136; right would be "
     "builtin or auto"},
    {"cudnn_with_hidden_dropout",
     [](Config& c) {
       c.train.attention = AttentionChoice::cudnn;
       c.model.hidden_dropout = 0.1;
     },
     0, ""},
    {"builtin_with_dropout",
     [](Config& c) {
       c.train.attention = AttentionChoice::builtin;
       c.model.attention_dropout = 0.1;
     },
     0, ""},

    {"float64_on_the_gpu",
     [](Config& c) {
       c.precision.dtype = Precision::float64;
       c.train.device = DeviceChoice::cuda;
     },
     0,
     "precision.dtype: float64 runs on the CPU only, and device is cuda; right would be bf16, fp16 or float32, or "
     "device cpu"},
    {"float64_with_bf16_moments",
     [](Config& c) {
       c.precision.dtype = Precision::float64;
       c.optimizer.moments_dtype = MomentsDtype::bf16;
     },
     0, "optimizer.moments_dtype: bf16 moments with dtype float64; right would be auto, which is float64 then"},
    {"float64_with_bf16_gradients",
     [](Config& c) {
       c.precision.dtype = Precision::float64;
       c.precision.grad_reduce_dtype = ReduceDtype::bf16;
     },
     0,
     "precision.grad_reduce_dtype: bf16 gradients on the wire with dtype float64; right would be float32, which leaves "
     "float64 gradients as they are"},
    {"loss_scale", [](Config& c) { c.precision.loss_scale.min_scale = 131072; }, 0,
     "precision.loss_scale.min_scale: min_scale 131072 is above init_scale 65536; right would be at most 65536"},
    {"nesterov",
     [](Config& c) {
       c.optimizer.name = OptimizerName::sgd;
       c.optimizer.nesterov = true;
       c.optimizer.momentum = 0;
     },
     0, "optimizer.nesterov: nesterov with momentum 0; right would be a momentum above 0, for example 0.9"},

    {"no_training_data", [](Config& c) { c.data.train.clear(); }, 0,
     "data.train: no training data is named; right would be files, folders or patterns, [shards/*.h5]"},
    {"empty_path", [](Config& c) { c.data.train.push_back(""); }, 0,
     "data.train: an entry is empty; right would be a path"},
    {"no_validation_data", [](Config& c) { c.eval.interval = 10; }, 0,
     "data.validation: evaluation every 10 steps needs validation data, and none is named; right would be files, "
     "folders or patterns, or eval.interval 0"},
    {"no_output_folder", [](Config& c) { c.train.output_dir.clear(); }, 0,
     "train.output_dir: is empty; right would be the path of the run folder, for example runs/default"},
    {"no_checkpoint_to_load", [](Config& c) { c.checkpoint.load.clear(); }, 0,
     "checkpoint.load: is empty; right would be auto, none, or the path of a checkpoint folder"},

    // Values that a file cannot have, because the reader knows their range.
    {"zero_heads", [](Config& c) { c.model.num_attention_heads = 0; }, 0,
     "model.num_attention_heads: is out of range (value '0'); right would be an integer at least 1"},
    {"nan_lr", [](Config& c) { c.optimizer.lr = std::numeric_limits<double>::quiet_NaN(); }, 0,
     "optimizer.lr: is out of range (value 'nan'); right would be a number at least 0"},
};

INSTANTIATE_TEST_SUITE_P(Faults, ConfigValidate, testing::ValuesIn(cases),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(ConfigValidateAll, EveryFaultIsTold) {
  Config config = valid_config();
  config.parallelism.tensor_parallel_size = 3;
  config.train.train_tokens = 5;
  config.train.micro_batch_size = 3;
  config.lr_scheduler.warmup_steps = 1000;
  config.data.train.clear();
  const auto faults = validate(config, 4);
  // Heads 4, FFN 176 and 4 ranks by TP 3; batch 8 by 3; two lengths; the warm-up; no data.
  EXPECT_EQ(faults.size(), 7U) << joined(faults);
  const std::string message = config_fault([&] { check(config, 4, {{"train.micro_batch_size", "a.yaml:3:9"}}); });
  EXPECT_TRUE(message.starts_with("the configuration has 7 faults:\n")) << message;
  EXPECT_NE(message.find("\na.yaml:3:9: train.micro_batch_size: global_batch_size 8 does not divide by"),
            std::string::npos)
      << message;
}

TEST(ConfigValidateAll, ExtremeSizesOverflowNothing) {
  Config config = valid_config();
  for (std::int64_t* size : {&config.model.hidden_size, &config.model.num_layers, &config.model.num_attention_heads,
                             &config.model.head_dim, &config.model.intermediate_size, &config.train.seq_length,
                             &config.train.micro_batch_size, &config.train.global_batch_size,
                             &config.parallelism.tensor_parallel_size, &config.parallelism.data_parallel_size}) {
    *size = 2147483647;
  }
  config.train.train_steps = 0;
  config.train.train_tokens = std::numeric_limits<std::int64_t>::max();
  EXPECT_FALSE(validate(config, 4).empty());
}

}  // namespace
}  // namespace trainer
