// The configuration: plain structs that are also the documentation. Each key is declared once, in describe(): its name,
// its range and its meaning; the strict reader (reader.h), the resolved dump, `--help` and docs/config.md all walk it.
#pragma once
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "core/runtime/context.h"

namespace trainer {

/// What a value must satisfy, besides its type.
struct Range {
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();
  bool low_is_open = false;   // low itself is not allowed
  bool high_is_open = false;  // high itself is not allowed
};
inline constexpr double unlimited = std::numeric_limits<double>::infinity();
inline constexpr double max_size = 2147483647;  // so that a product of two sizes fits in 64 bits
inline constexpr Range any_value{};
inline constexpr Range positive{0, unlimited, true};
inline constexpr Range not_negative{0, unlimited};
inline constexpr Range fraction{0, 1};
inline constexpr Range below_one{0, 1, false, true};
inline constexpr Range size_range{1, max_size};
/// More are a slip of the keys, whose layout would take minutes to write down.
inline constexpr Range layers_range{1, 100'000};
inline constexpr Range size_or_zero{0, max_size};

enum class NormKind : std::uint8_t { layernorm, rmsnorm };
enum class Activation : std::uint8_t { gelu, gelu_tanh, swiglu };
enum class Position : std::uint8_t { none, learned, rope };
enum class RopeScalingType : std::uint8_t { none, linear, llama3 };
enum class Precision : std::uint8_t { float64, float32, bf16, fp16 };
enum class MomentsDtype : std::uint8_t { automatic, float32, bf16 };
enum class ReduceDtype : std::uint8_t { float32, bf16 };
enum class OptimizerName : std::uint8_t { adamw, sgd };
enum class ScheduleName : std::uint8_t { constant, linear, cosine, wsd, inverse_sqrt };
enum class RecomputeMode : std::uint8_t { none, selective, full };
enum class DeviceChoice : std::uint8_t { automatic, cpu, cuda };
enum class ProgressMode : std::uint8_t { automatic, on, off };
enum class DataFormat : std::uint8_t { automatic, hdf5, bin_uint16, bin_uint32 };

/// The spellings of an enum in the YAML file, in the order of its values.
template <class E>
struct EnumNames;
#define TRAINER_ENUM_NAMES(E, ...)                         \
  template <>                                              \
  struct EnumNames<E> {                                    \
    static constexpr const char* values[] = {__VA_ARGS__}; \
  }
TRAINER_ENUM_NAMES(NormKind, "layernorm", "rmsnorm");
TRAINER_ENUM_NAMES(Activation, "gelu", "gelu_tanh", "swiglu");
TRAINER_ENUM_NAMES(Position, "none", "learned", "rope");
TRAINER_ENUM_NAMES(RopeScalingType, "none", "linear", "llama3");
TRAINER_ENUM_NAMES(Precision, "float64", "float32", "bf16", "fp16");
TRAINER_ENUM_NAMES(MomentsDtype, "auto", "float32", "bf16");
TRAINER_ENUM_NAMES(ReduceDtype, "float32", "bf16");
TRAINER_ENUM_NAMES(OptimizerName, "adamw", "sgd");
TRAINER_ENUM_NAMES(ScheduleName, "constant", "linear", "cosine", "wsd", "inverse_sqrt");
TRAINER_ENUM_NAMES(RecomputeMode, "none", "selective", "full");
TRAINER_ENUM_NAMES(DeviceChoice, "auto", "cpu", "cuda");
TRAINER_ENUM_NAMES(AttentionChoice, "auto", "cudnn", "builtin");
TRAINER_ENUM_NAMES(ProgressMode, "auto", "on", "off");
TRAINER_ENUM_NAMES(DataFormat, "auto", "hdf5", "bin_uint16", "bin_uint32");
#undef TRAINER_ENUM_NAMES

struct RopeScalingConfig {
  RopeScalingType type = RopeScalingType::none;
  double factor = 1.0;
  double low_freq_factor = 1.0;
  double high_freq_factor = 4.0;
  std::int64_t original_max_position_embeddings = 8192;

  template <class V>
  void describe(V& v) {
    v.key("type", type, any_value,
          "How RoPE frequencies are stretched for longer contexts; llama3 is the rule of Llama 3.1 and later.");
    v.key("factor", factor, positive, "Context extension factor.");
    v.key("low_freq_factor", low_freq_factor, positive,
          "llama3: wavelengths above original/low_freq_factor are fully scaled.");
    v.key("high_freq_factor", high_freq_factor, positive,
          "llama3: wavelengths below original/high_freq_factor are left alone.");
    v.key("original_max_position_embeddings", original_max_position_embeddings, size_range,
          "llama3: context length before the extension.");
  }
};

struct ModelConfig {
  std::int64_t hidden_size = 0;
  std::int64_t num_layers = 0;
  std::int64_t num_attention_heads = 0;
  std::int64_t num_key_value_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t intermediate_size = 0;
  std::int64_t vocab_size = 0;
  std::int64_t max_position_embeddings = 0;
  NormKind norm = NormKind::rmsnorm;
  double norm_eps = 1e-5;
  Activation activation = Activation::swiglu;
  Position position = Position::rope;
  double rope_theta = 10000.0;
  RopeScalingConfig rope_scaling;
  double rotary_pct = 1.0;
  std::int64_t sliding_window = 0;
  bool attention_bias = false;
  bool attention_out_bias = false;
  bool mlp_bias = false;
  bool qk_norm = false;
  bool parallel_residual = false;
  bool tie_word_embeddings = false;
  double hidden_dropout = 0.0;
  double attention_dropout = 0.0;
  double initializer_range = 0.02;

  template <class V>
  void describe(V& v) {
    v.required("hidden_size", hidden_size, size_range, "Width of the residual stream (C).");
    v.required("num_layers", num_layers, layers_range, "Number of transformer blocks.");
    v.required("num_attention_heads", num_attention_heads, size_range, "Query heads.");
    v.key("num_key_value_heads", num_key_value_heads, size_or_zero,
          "Key/value heads for grouped-query attention; 0: as many as query heads.");
    v.key("head_dim", head_dim, size_or_zero, "Width of a head; 0: hidden_size / num_attention_heads.");
    v.key("intermediate_size", intermediate_size, size_or_zero,
          "Width of the MLP; 0: 4 x hidden_size (gelu and gelu_tanh only: swiglu has no such convention).");
    v.required("vocab_size", vocab_size, size_range,
               "Number of tokens. Padded internally to the tensor-parallel size; padding is never exported and never "
               "predicted.");
    v.key("max_position_embeddings", max_position_embeddings, size_or_zero,
          "Longest position (rows of the learned table, length of the RoPE table); 0: train.seq_length.");
    v.key("norm", norm, any_value, "Normalisation.");
    v.key("norm_eps", norm_eps, positive, "Added to the variance.");
    v.key("activation", activation, any_value,
          "gelu is the exact (erf) form, gelu_tanh GPT-2's approximation, swiglu the gated SiLU of Llama.");
    v.key("position", position, any_value,
          "learned: GPT-2's table; rope: rotary embedding, half-split as in Hugging Face models.");
    v.key("rope_theta", rope_theta, positive, "RoPE base.");
    v.section("rope_scaling", rope_scaling, "RoPE for contexts longer than the model was first trained with.");
    v.key("rotary_pct", rotary_pct, Range{0, 1, true}, "Share of head_dim that is rotated (GPT-NeoX: 0.25).");
    v.key("sliding_window", sliding_window, size_or_zero,
          "A token attends to at most this many tokens, itself included (Mistral); 0: to all before it.");
    v.key("attention_bias", attention_bias, any_value, "Bias on the q, k and v projections (GPT-2, GPT-NeoX, Qwen 2).");
    v.key("attention_out_bias", attention_out_bias, any_value, "Bias on the attention output projection.");
    v.key("mlp_bias", mlp_bias, any_value, "Bias on the MLP projections.");
    v.key("qk_norm", qk_norm, any_value, "RMSNorm on each head of q and k, before RoPE (Qwen 3).");
    v.key("parallel_residual", parallel_residual, any_value,
          "x + attention(norm1(x)) + mlp(norm2(x)) instead of one after the other (GPT-NeoX).");
    v.key("tie_word_embeddings", tie_word_embeddings, any_value, "The LM head uses the input embedding's weight.");
    v.key("hidden_dropout", hidden_dropout, below_one, "Dropout after the embedding and on each residual branch.");
    v.key("attention_dropout", attention_dropout, below_one, "Dropout on attention probabilities.");
    v.key("initializer_range", initializer_range, positive,
          "Standard deviation of the initial weights; output projections of a block get it divided by sqrt(2 x "
          "num_layers).");
  }
};

struct TrainConfig {
  std::int64_t seq_length = 0;
  std::int64_t micro_batch_size = 1;
  std::int64_t global_batch_size = 0;
  std::int64_t train_steps = 0;
  std::int64_t train_tokens = 0;
  double train_epochs = 0;
  std::int64_t seed = 1234;
  double z_loss = 0.0;
  DeviceChoice device = DeviceChoice::automatic;
  AttentionChoice attention = AttentionChoice::automatic;
  bool deterministic = true;
  std::string output_dir = "runs/default";

  template <class V>
  void describe(V& v) {
    v.required("seq_length", seq_length, size_range, "Tokens in a sample (T).");
    v.key("micro_batch_size", micro_batch_size, size_range, "Samples that one data-parallel rank computes at once.");
    v.required("global_batch_size", global_batch_size, size_range,
               "Samples in a step over all ranks; a multiple of micro_batch_size x data_parallel_size. The number of "
               "accumulated micro-batches follows from it.");
    v.key("train_steps", train_steps, not_negative,
          "Steps to train. Exactly one of train_steps, train_tokens and train_epochs is given.");
    v.key("train_tokens", train_tokens, not_negative, "Tokens to train; rounded up to whole steps.");
    v.key("train_epochs", train_epochs, not_negative, "Passes over the training data; rounded up to whole steps.");
    v.key("seed", seed, not_negative, "Seeds the weights, the order of samples, dropout and stochastic rounding.");
    v.key("z_loss", z_loss, not_negative,
          "Coefficient of the squared log-partition added to each token's loss; 0: off.");
    v.key("device", device, any_value,
          "auto takes the GPU where there is one and this build has CUDA, the CPU otherwise.");
    v.key(
        "attention", attention, any_value,
        "Attention on the GPU: cudnn is cuDNN's (sm_80 and newer, without dropout on probabilities), builtin our own; "
        "auto takes the faster of those that can. With data.intra_document_attention cudnn needs sm_90 and "
        "deterministic "
        "false; auto is builtin when deterministic is true.");
    v.key("deterministic", deterministic, any_value,
          "Same configuration on the same machine gives bit-identical losses.");
    v.key("output_dir", output_dir, any_value, "The run folder: resolved configuration, metrics, logs, checkpoints.");
  }
};

struct OptimizerConfig {
  OptimizerName name = OptimizerName::adamw;
  double lr = 3e-4;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;
  bool decay_embeddings = true;
  bool decay_norms_and_biases = false;
  double momentum = 0.9;
  bool nesterov = false;
  double clip_grad_norm = 1.0;
  MomentsDtype moments_dtype = MomentsDtype::automatic;
  bool offload = false;

  template <class V>
  void describe(V& v) {
    v.key("name", name, any_value, "adamw: Loshchilov and Hutter 2019; sgd: with momentum.");
    v.key("lr", lr, not_negative, "Peak learning rate.");
    v.key("beta1", beta1, below_one, "AdamW: decay of the first moment.");
    v.key("beta2", beta2, below_one, "AdamW: decay of the second moment.");
    v.key("eps", eps, positive,
          "AdamW: added to the square root of the second moment, which is 0 for what no gradient reached.");
    v.key("weight_decay", weight_decay, not_negative,
          "Decoupled weight decay (sgd: added to the gradient). Applies to weight matrices, and to what the next two "
          "keys say.");
    v.key("decay_embeddings", decay_embeddings, any_value, "Weight decay on the token and position embeddings.");
    v.key("decay_norms_and_biases", decay_norms_and_biases, any_value, "Weight decay on norm weights and on biases.");
    v.key("momentum", momentum, below_one, "SGD: momentum; 0 keeps no moment.");
    v.key("nesterov", nesterov, any_value, "SGD: Nesterov's form.");
    v.key("clip_grad_norm", clip_grad_norm, not_negative, "Gradients are scaled down to this global L2 norm; 0: off.");
    v.key("moments_dtype", moments_dtype, any_value,
          "auto: float32 (float64 when precision.dtype is float64). bf16 halves the memory of the moments and is "
          "rounded stochastically.");
    v.key("offload", offload, any_value,
          "Keep masters and moments in pinned host memory and bring them to the GPU piece by piece in each update: the "
          "same result, slower; for cards where nothing else fits.");
  }
};

struct LrSchedulerConfig {
  ScheduleName name = ScheduleName::cosine;
  std::int64_t warmup_steps = 0;
  std::int64_t decay_steps = 0;
  double min_lr_ratio = 0.1;

  template <class V>
  void describe(V& v) {
    v.key("name", name, any_value,
          "Shape after the warm-up; docs/numerics.md has the closed forms. wsd: constant, then linear decay over the "
          "last decay_steps.");
    v.key("warmup_steps", warmup_steps, not_negative,
          "Steps of linear warm-up; step k (counted from 0) uses lr x (k + 1) / warmup_steps.");
    v.key("decay_steps", decay_steps, not_negative,
          "linear, cosine: step at which the minimum is reached, 0: the last one. wsd: length of the final decay.");
    v.key("min_lr_ratio", min_lr_ratio, fraction, "Lowest learning rate as a share of the peak.");
  }
};

struct LossScaleConfig {
  double init_scale = 65536.0;
  double growth_factor = 2.0;
  double backoff_factor = 0.5;
  std::int64_t growth_interval = 2000;
  std::int64_t hysteresis = 1;
  double min_scale = 1.0;

  template <class V>
  void describe(V& v) {
    v.key("init_scale", init_scale, positive, "First loss scale.");
    v.key("growth_factor", growth_factor, Range{1, unlimited}, "Factor after growth_interval finite steps in a row.");
    v.key("backoff_factor", backoff_factor, Range{0, 1, true, true}, "Factor after `hysteresis` non-finite steps.");
    v.key("growth_interval", growth_interval, size_range, "Finite steps in a row before the scale grows.");
    v.key("hysteresis", hysteresis, size_range,
          "Non-finite steps before the scale backs off; refilled when the scale grows.");
    v.key("min_scale", min_scale, positive,
          "Floor. A non-finite step at the floor ends the run with exit code 6 and names the first bad tensor.");
  }
};

struct PrecisionConfig {
  Precision dtype = Precision::bf16;
  ReduceDtype grad_reduce_dtype = ReduceDtype::float32;
  LossScaleConfig loss_scale;
  std::int64_t max_consecutive_skips = 100;

  template <class V>
  void describe(V& v) {
    v.key("dtype", dtype, any_value,
          "Type of weights and activations in the model. bf16 and fp16 keep float32 masters; fp16 uses loss scaling; "
          "float64 is for tests on the CPU.");
    v.key(
        "grad_reduce_dtype", grad_reduce_dtype, any_value,
        "Type of gradients on the wire between data-parallel ranks. bf16 is half the bytes to send. Under ZeRO 2 and 3 "
        "with dtype bf16 it takes less memory than float32; elsewhere it takes a copy of the longest block.");
    v.section("loss_scale", loss_scale,
              "Dynamic loss scaling (fp16 only), with the names and defaults of PyTorch's GradScaler.");
    v.key("max_consecutive_skips", max_consecutive_skips, size_range,
          "This many skipped steps in a row end the run with exit code 6.");
  }
};

struct ParallelismConfig {
  std::int64_t tensor_parallel_size = 1;
  std::int64_t data_parallel_size = 0;
  std::int64_t pipeline_parallel_size = 1;
  std::int64_t context_parallel_size = 1;
  bool sequence_parallel = false;
  std::int64_t zero_stage = 0;
  std::int64_t zero_group_size = 0;
  std::int64_t zero_resident_layers = 0;

  template <class V>
  void describe(V& v) {
    v.key("tensor_parallel_size", tensor_parallel_size, size_range,
          "Ranks that share every matrix. Divides num_attention_heads and intermediate_size.");
    v.key("data_parallel_size", data_parallel_size, size_or_zero,
          "Ranks that see different samples; 0: all ranks divided by tensor_parallel_size.");
    v.key("pipeline_parallel_size", pipeline_parallel_size, Range{1, 1}, "Must be 1 in this version.");
    v.key("context_parallel_size", context_parallel_size, Range{1, 1}, "Must be 1 in this version.");
    v.key("sequence_parallel", sequence_parallel, any_value,
          "Norms and residuals hold a 1/tensor_parallel_size part of the tokens each.");
    v.key("zero_stage", zero_stage, Range{0, 3},
          "What is split over data-parallel ranks: 1 the optimizer state, 2 also gradients, 3 also weights, which are "
          "then gathered block by block; 0: nothing.");
    v.key("zero_group_size", zero_group_size, size_or_zero,
          "Data-parallel ranks among which ZeRO splits; divides data_parallel_size; 0: all of them.");
    v.key(
        "zero_resident_layers", zero_resident_layers, size_or_zero,
        "Under zero_stage 3: so many transformer layers stay whole on every rank and are gathered once a step. Less is "
        "communicated, for memory: trainer plan says how many fit.");
  }
};

struct ActivationCheckpointingConfig {
  RecomputeMode mode = RecomputeMode::none;

  template <class V>
  void describe(V& v) {
    v.key("mode", mode, any_value,
          "selective computes norms and activation functions again in the backward pass, full the whole block. Same "
          "result, bit for bit.");
  }
};

struct DataConfig {
  std::vector<std::string> train;
  std::vector<std::string> validation;
  DataFormat format = DataFormat::automatic;
  bool intra_document_attention = false;
  std::int64_t prefetch = 4;

  template <class V>
  void describe(V& v) {
    v.key("train", train, any_value,
          "Token shards for training: files, folders or patterns (*), read in sorted order as one sequence of tokens.");
    v.key("validation", validation, any_value, "Token shards for evaluation.");
    v.key("format", format, any_value,
          "auto: by extension and magic number (.h5, .hdf5; .bin of llm.c). A raw .bin without header needs bin_uint16 "
          "or bin_uint32.");
    v.key("intra_document_attention", intra_document_attention, any_value,
          "A token attends only to tokens of its own document, and positions start again with each document. Needs "
          "shards that say where documents begin (trainer data prepare writes them); docs/data.md has the details.");
    v.key("prefetch", prefetch, size_range, "Micro-batches that the loader prepares ahead.");
  }
};

struct CheckpointConfig {
  std::string save_dir;
  std::string load = "auto";
  std::int64_t save_interval = 0;
  bool save_at_end = true;
  std::int64_t keep_last = 0;
  bool save_on_signal = true;
  bool allow_data_change = false;

  template <class V>
  void describe(V& v) {
    v.key("save_dir", save_dir, any_value, "Where checkpoints go; empty: output_dir/checkpoints.");
    v.key("load", load, any_value,
          "auto: the newest usable checkpoint of save_dir, a new run when there is none; none: a new run; PATH: this "
          "checkpoint folder.");
    v.key("save_interval", save_interval, not_negative, "Save every this many steps; 0: never.");
    v.key("save_at_end", save_at_end, any_value, "Save after the last step.");
    v.key("keep_last", keep_last, size_or_zero,
          "Keep this many newest checkpoints and remove older ones; 0: keep all.");
    v.key("save_on_signal", save_on_signal, any_value, "SIGUSR1 or SIGTERM: finish the step, save, exit with code 75.");
    v.key("allow_data_change", allow_data_change, any_value,
          "Resume although the seed, the data, seq_length or global_batch_size differ from the checkpoint's; the order "
          "of samples is then the new one from there on.");
  }
};

struct EvalConfig {
  std::int64_t interval = 0;
  std::int64_t batches = 16;
  bool at_end = true;

  template <class V>
  void describe(V& v) {
    v.key("interval", interval, not_negative, "Evaluate every this many steps; 0: never.");
    v.key("batches", batches, size_or_zero,
          "Global batches of validation data in an evaluation; 0: the whole validation set.");
    v.key("at_end", at_end, any_value, "Evaluate after the last step, if there is validation data.");
  }
};

struct LoggingConfig {
  std::int64_t interval = 1;
  bool tensorboard = true;
  ProgressMode progress = ProgressMode::automatic;

  template <class V>
  void describe(V& v) {
    v.key("interval", interval, size_range, "Write metrics every this many steps.");
    v.key("tensorboard", tensorboard, any_value, "Write TensorBoard event files to output_dir/tb.");
    v.key("progress", progress, any_value,
          "The progress line: auto shows it in a terminal only; a log line per interval is written otherwise.");
  }
};

struct ProfilerConfig {
  std::int64_t start_step = 10;
  std::int64_t num_steps = 0;

  template <class V>
  void describe(V& v) {
    v.key("start_step", start_step, size_range, "First step of the window, counted from 1.");
    v.key("num_steps", num_steps, not_negative,
          "Steps in the window, whose ops each rank writes to output_dir/traces/rank-NNNN.json, in the format of "
          "Chrome's tracing and Perfetto; 0: off.");
  }
};

struct CommConfig {
  double timeout_seconds = 600;
  bool overlap = true;
  bool peer_copies = true;

  template <class V>
  void describe(V& v) {
    v.key("timeout_seconds", timeout_seconds, positive,
          "A collective that waits longer ends the job with exit code 7, naming the rank that did not come.");
    v.key("overlap", overlap, any_value,
          "Communicate while computing (GPU). false: one after the other, the same result bit for bit; for finding "
          "faults.");
    v.key("peer_copies", peer_copies, any_value,
          "Between GPUs of one host, move large tensors with copy engines instead of NCCL's kernels, which take "
          "multiprocessors from the computation. Takes 256 MiB of GPU memory for each group of ranks. Where GPUs "
          "cannot reach each other's "
          "memory NCCL copies.");
  }
};

struct Config {
  ModelConfig model;
  TrainConfig train;
  OptimizerConfig optimizer;
  LrSchedulerConfig lr_scheduler;
  PrecisionConfig precision;
  ParallelismConfig parallelism;
  ActivationCheckpointingConfig activation_checkpointing;
  DataConfig data;
  CheckpointConfig checkpoint;
  EvalConfig eval;
  LoggingConfig logging;
  ProfilerConfig profiler;
  CommConfig comm;

  template <class V>
  void describe(V& v) {
    v.section("model", model,
              "The transformer, in Hugging Face's words. GPT-2, GPT-NeoX, Llama, Mistral and Qwen are settings of one "
              "block.");
    v.section("train", train, "Batch, length of the run, seed, place.");
    v.section("optimizer", optimizer, "The update rule.");
    v.section("lr_scheduler", lr_scheduler, "The learning rate as a function of the step.");
    v.section("precision", precision, "Number formats and loss scaling.");
    v.section("parallelism", parallelism, "How the model and the batch are spread over ranks.");
    v.section("activation_checkpointing", activation_checkpointing,
              "Memory for time: compute activations again in the backward pass.");
    v.section("data", data, "Where tokens come from.");
    v.section("checkpoint", checkpoint, "Saving and resuming.");
    v.section("eval", eval, "Evaluation during training.");
    v.section("logging", logging, "What is written while training.");
    v.section("profiler", profiler, "Where the time of a few steps goes.");
    v.section("comm", comm, "Communication between ranks.");
  }
};

}  // namespace trainer
