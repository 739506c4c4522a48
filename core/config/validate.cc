#include "core/config/validate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "core/config/resolve.h"
#include "core/config/schema.h"
#include "core/runtime/attention_support.h"
#include "core/runtime/check.h"
#include "core/runtime/counted.h"
#include "core/runtime/divide.h"

namespace trainer {
namespace {

/// Of the values in [1, limit] that are valid, the two nearest to `value`: "3 or 2". Empty when there are none.
template <class Valid>
std::string nearest_valid(std::int64_t value, std::int64_t limit, Valid valid) {
  std::vector<std::int64_t> found;
  constexpr std::int64_t reach = 1 << 20;  // no one wants a value further away
  for (std::int64_t away = 0; away <= std::min(reach, std::max(value, limit)) && found.size() < 2; ++away) {
    for (const std::int64_t candidate : {value - away, value + away}) {
      const bool repeated = !found.empty() && found.back() == candidate;
      if (candidate >= 1 && candidate <= limit && !repeated && valid(candidate)) found.push_back(candidate);
    }
  }
  if (found.size() > 2) found.resize(2);
  return fmt::format("{}", fmt::join(found, " or "));
}

/// The multiples of `unit` around `value`: "12 or 16".
std::string nearest_multiples(std::int64_t value, std::int64_t unit) {
  const std::int64_t below = value / unit * unit;
  return below == 0 ? fmt::format("{}", unit) : fmt::format("{} or {}", below, below + unit);
}

/// Checks one configuration: `given_` as the user wrote it, `config_` with the derived values filled in.
class Checker {
 public:
  Checker(const Config& config, int world_size) : given_(config), config_(config), world_size_(world_size) {
    resolve_defaults(config_, world_size);
  }

  std::vector<CrossFault> run() {
    heads();
    positions();
    activation();
    attention();
    tensor_parallel();
    ranks();
    batch();
    duration();
    schedule();
    precision();
    places();
    return std::move(faults_);
  }

 private:
  using Keys = std::vector<std::string>;

  template <class... Args>
  void fault(Keys keys, fmt::format_string<Args...> format, Args&&... args) {
    faults_.push_back({std::move(keys), fmt::format(format, std::forward<Args>(args)...)});
  }

  void heads() {
    const ModelConfig& model = config_.model;
    const std::int64_t heads = model.num_attention_heads;
    const std::int64_t kv = model.num_key_value_heads;
    if (given_.model.head_dim == 0 && model.hidden_size % heads != 0) {
      fault({"model.num_attention_heads", "model.hidden_size", "model.head_dim"},
            "hidden_size {} does not divide by num_attention_heads {}; right would be {} heads, or head_dim given",
            model.hidden_size, heads,
            nearest_valid(heads, model.hidden_size, [&](std::int64_t n) { return model.hidden_size % n == 0; }));
    }
    if (heads % kv != 0) {
      fault({"model.num_key_value_heads", "model.num_attention_heads"},
            "num_attention_heads {} does not divide by num_key_value_heads {}; right would be {}", heads, kv,
            nearest_valid(kv, heads, [&](std::int64_t n) { return heads % n == 0; }));
    }
  }

  void positions() {
    const ModelConfig& model = config_.model;
    const std::int64_t seq = config_.train.seq_length;
    if (model.position != Position::none && seq > model.max_position_embeddings) {
      fault({"train.seq_length", "model.max_position_embeddings"},
            "seq_length {} is above max_position_embeddings {}; right would be a seq_length of at most {}, or more "
            "positions",
            seq, model.max_position_embeddings, model.max_position_embeddings);
    }
    if (model.position == Position::rope) rope();
    const RopeScalingConfig& scaling = model.rope_scaling;
    if (model.position != Position::rope && scaling.type != RopeScalingType::none) {
      fault({"model.rope_scaling.type", "model.position"},
            "RoPE scaling '{}' without RoPE; right would be type none, or "
            "position rope",
            EnumNames<RopeScalingType>::values[static_cast<int>(scaling.type)]);
    }
    if (scaling.type == RopeScalingType::none && scaling.factor != 1) {
      fault({"model.rope_scaling.factor", "model.rope_scaling.type"},
            "factor {} has no effect with type none; right would be type linear or llama3", scaling.factor);
    }
    if (scaling.type == RopeScalingType::llama3 && scaling.low_freq_factor >= scaling.high_freq_factor) {
      fault({"model.rope_scaling.low_freq_factor", "model.rope_scaling.high_freq_factor"},
            "low_freq_factor {} is not below high_freq_factor {}; right would be 1 and 4, as in Llama 3.1",
            scaling.low_freq_factor, scaling.high_freq_factor);
    }
  }

  void rope() {
    const ModelConfig& model = config_.model;
    const std::int64_t head_dim = model.head_dim;
    const bool divides = given_.model.head_dim != 0 || model.hidden_size % model.num_attention_heads == 0;
    if (!divides) return;  // heads() says so
    const Keys keys =
        given_.model.head_dim != 0 ? Keys{"model.head_dim"} : Keys{"model.num_attention_heads", "model.hidden_size"};
    if (head_dim % 2 != 0) {
      return fault(
          keys, "RoPE turns pairs of elements and needs an even head_dim, not {}{}; right would be {}", head_dim,
          given_.model.head_dim != 0
              ? std::string()
              : fmt::format(" (hidden_size {} / num_attention_heads {})", model.hidden_size, model.num_attention_heads),
          nearest_valid(head_dim, head_dim + 1, [](std::int64_t n) { return n % 2 == 0; }));
    }
    const std::int64_t dims = rotary_dims(model);
    if (dims == 0 || dims % 2 != 0) {
      const std::int64_t even = std::max<std::int64_t>(2, dims - dims % 2);
      fault({"model.rotary_pct", keys.front()},
            "rotary_pct {} of head_dim {} rotates {} elements, which must be even and not 0; right would be {} ({} "
            "elements)",
            model.rotary_pct, head_dim, dims, static_cast<double>(even) / static_cast<double>(head_dim), even);
    }
  }

  void activation() {
    const std::int64_t hidden = config_.model.hidden_size;
    if (config_.model.activation == Activation::swiglu && given_.model.intermediate_size == 0) {
      const std::int64_t llama = round_up(8 * hidden / 3, 64);
      fault({"model.intermediate_size", "model.activation", "model.hidden_size"},
            "swiglu needs an intermediate_size; right would be {} (8/3 x hidden_size {}, as in Llama, rounded up to a "
            "multiple of 64)",
            llama, hidden);
    }
  }

  void attention() {
    const double dropout = config_.model.attention_dropout;
    const bool cudnn = config_.train.attention == AttentionChoice::cudnn;
    if (cudnn && dropout > 0) {
      fault({"train.attention", "model.attention_dropout"},
            "cuDNN's attention has no dropout on probabilities, and attention_dropout is {}; right would be builtin or "
            "auto, or attention_dropout 0",
            dropout);
    }
    if (cudnn && (config_.precision.dtype == Precision::float32 || config_.precision.dtype == Precision::float64)) {
      fault({"train.attention", "precision.dtype"},
            "cuDNN's attention has 16-bit types only; right would be builtin or auto, or precision.dtype bf16 or fp16");
    }
    if (const std::int64_t head_dim = config_.model.head_dim; cudnn && !cudnn_takes_head_dim(head_dim)) {
      fault({"train.attention", "model.head_dim"},
            "cuDNN's attention has heads of up to 128 that divide by 8, and head_dim is {}; right would be builtin or "
            "auto",
            head_dim);
    }
    if (!config_.data.intra_document_attention) return;
    if (cudnn && config_.train.deterministic) {
      fault({"train.attention", "data.intra_document_attention", "train.deterministic"},
            "cuDNN's attention within documents does not give the same bits in every run; right would be builtin or "
            "auto, or deterministic false");
    }
    if (cudnn && !cudnn_documents_take_head_dim(config_.model.head_dim)) {
      fault({"train.attention", "data.intra_document_attention", "model.head_dim"},
            "cuDNN's attention within documents wants heads that divide by 16, and head_dim is {}; right would be "
            "builtin "
            "or auto",
            config_.model.head_dim);
    }
    if (dropout > 0) {
      fault({"data.intra_document_attention", "model.attention_dropout"},
            "attention_dropout is {}, whose random numbers are counted by sequences of seq_length tokens, and a "
            "document is a sequence of its own length; right would be attention_dropout 0, or "
            "intra_document_attention false",
            dropout);
    }
  }

  bool splits(std::int64_t tp) const {
    const ModelConfig& model = config_.model;
    return model.num_attention_heads % tp == 0 && model.intermediate_size % tp == 0 && kv_heads_split(tp) &&
           (world_size_ == 0 || world_size_ % tp == 0);
  }

  /// Whole KV heads on each rank, or each KV head on a whole number of ranks.
  bool kv_heads_split(std::int64_t tp) const {
    const std::int64_t kv = config_.model.num_key_value_heads;
    return kv % tp == 0 || tp % kv == 0;
  }

  void tensor_parallel() {
    const ModelConfig& model = config_.model;
    const std::int64_t tp = config_.parallelism.tensor_parallel_size;
    const std::string advice = "right would be tensor_parallel_size " +
                               nearest_valid(tp, model.num_attention_heads, [&](std::int64_t n) { return splits(n); });
    const std::string key = "parallelism.tensor_parallel_size";
    if (model.num_attention_heads % tp != 0) {
      fault({key, "model.num_attention_heads"}, "num_attention_heads {} does not divide by tensor_parallel_size {}; {}",
            model.num_attention_heads, tp, advice);
    } else if (!kv_heads_split(tp)) {
      fault({key, "model.num_key_value_heads", "model.num_attention_heads"},
            "num_key_value_heads {} and tensor_parallel_size {} do not divide one another; {}",
            model.num_key_value_heads, tp, advice);
    }
    if (model.intermediate_size % tp != 0) {
      fault({key, "model.intermediate_size", "model.hidden_size"},
            "intermediate_size {} does not divide by tensor_parallel_size {}; {}, or intermediate_size {}",
            model.intermediate_size, tp, advice, nearest_multiples(model.intermediate_size, tp));
    }
    const std::int64_t tokens = config_.train.micro_batch_size * config_.train.seq_length;
    if (config_.parallelism.sequence_parallel && tokens % tp != 0) {
      const std::int64_t unit = tp / std::gcd(tp, config_.train.micro_batch_size);
      fault({"train.seq_length", "train.micro_batch_size", key, "parallelism.sequence_parallel"},
            "sequence_parallel splits micro_batch_size {} x seq_length {} = {} tokens, which do not divide by "
            "tensor_parallel_size {}; right would be seq_length {}",
            config_.train.micro_batch_size, config_.train.seq_length, tokens, tp,
            nearest_multiples(config_.train.seq_length, unit));
    }
  }

  void ranks() {
    const std::int64_t tp = config_.parallelism.tensor_parallel_size;
    const std::int64_t dp = given_.parallelism.data_parallel_size;
    const Keys keys = {"parallelism.tensor_parallel_size", "parallelism.data_parallel_size"};
    const std::string job = fmt::format("and the job has {}; right would be", counted(world_size_, "rank"));
    if (world_size_ > 0 && dp == 0 && world_size_ % tp != 0) {
      fault(keys, "tensor_parallel_size {} needs {} or a multiple of that, {} {}, or tensor_parallel_size {}", tp,
            counted(tp, "rank"), job, start_of(std::max(tp, world_size_ / tp * tp)),
            nearest_valid(tp, world_size_, [&](std::int64_t n) { return splits(n); }));
    }
    if (world_size_ > 0 && dp != 0 && tp * dp != world_size_) {
      fault({keys[1], keys[0]}, "tensor_parallel_size {} x data_parallel_size {} needs {}, {} {}{}", tp, dp,
            counted(tp * dp, "rank"), job, start_of(tp * dp),
            world_size_ % tp == 0 ? ", or data_parallel_size 0 to follow the job" : "");
    }
    zero_group();
    zero_resident_layers();
  }

  /// So many ranks, and what starts them.
  static std::string start_of(std::int64_t ranks) {
    const std::string launcher = ranks == 1 ? "" : fmt::format("mpirun -np {} ", ranks);
    return fmt::format("{} ('{}trainer ...')", counted(ranks, "rank"), launcher);
  }

  /// The data-parallel size; 0: not known, or the ranks do not divide.
  std::int64_t known_dp() const {
    const bool divides = world_size_ % config_.parallelism.tensor_parallel_size == 0;
    return given_.parallelism.data_parallel_size != 0 || divides ? config_.parallelism.data_parallel_size : 0;
  }

  void zero_group() {
    const std::int64_t dp = known_dp();
    const std::int64_t group = given_.parallelism.zero_group_size;
    if (config_.parallelism.zero_stage == 0 || group == 0 || dp == 0 || dp % group == 0) return;
    fault({"parallelism.zero_group_size", "parallelism.data_parallel_size", "parallelism.tensor_parallel_size"},
          "data_parallel_size {} does not divide by zero_group_size {}; right would be {}, or 0 for all ranks", dp,
          group, nearest_valid(group, dp, [&](std::int64_t n) { return dp % n == 0; }));
  }

  void zero_resident_layers() {
    const std::int64_t resident = config_.parallelism.zero_resident_layers, layers = config_.model.num_layers;
    if (resident > 0 && config_.parallelism.zero_stage < 3) {
      fault({"parallelism.zero_resident_layers", "parallelism.zero_stage"},
            "under zero_stage {} all layers are resident; right would be 0, or zero_stage 3",
            config_.parallelism.zero_stage);
    } else if (resident > layers) {
      fault({"parallelism.zero_resident_layers", "model.num_layers"},
            "{} of {} layers; right would be at most {}, or zero_stage 2 for all", resident, layers, layers);
    }
  }

  void batch() {
    const std::int64_t global = config_.train.global_batch_size;
    const std::int64_t micro = config_.train.micro_batch_size;
    const std::int64_t dp = std::max<std::int64_t>(1, known_dp());
    if (global % (micro * dp) == 0) return;
    fault({"train.global_batch_size", "train.micro_batch_size", "parallelism.data_parallel_size",
           "parallelism.tensor_parallel_size"},
          "global_batch_size {} does not divide by micro_batch_size {} x data_parallel_size {} = {}; right would be "
          "global_batch_size {}",
          global, micro, dp, micro * dp, nearest_multiples(global, micro * dp));
  }

  void duration() {
    const TrainConfig& train = config_.train;
    const int given = (train.train_steps > 0) + (train.train_tokens > 0) + (train.train_epochs > 0);
    if (given == 1) {
      const std::int64_t most = most_steps(train), steps = known_steps();
      if (steps > most)
        fault({train.train_steps > 0 ? "train.train_steps" : "train.train_tokens", "train.global_batch_size",
               "train.seq_length"},
              "the tokens of {} steps of {} x {} do not fit in 64 bits; right would be at most {} steps", steps,
              train.global_batch_size, train.seq_length, most);
      return;
    }
    const Keys keys = {"train.train_steps", "train.train_tokens", "train.train_epochs"};
    if (given == 0) {
      fault(keys, "the length of the run is missing; right would be one of train_steps, train_tokens and train_epochs");
    } else {
      fault(keys,
            "train_steps {}, train_tokens {} and train_epochs {} are given together; right would be one of them, and 0 "
            "for the others",
            train.train_steps, train.train_tokens, train.train_epochs);
    }
  }

  /// Steps of the run as far as they are known before the data is opened; 0: not known.
  std::int64_t known_steps() const {
    const TrainConfig& train = config_.train;
    return train.train_steps > 0 || train.train_tokens > 0 ? total_steps(config_, 0) : 0;
  }

  void schedule() {
    const LrSchedulerConfig& schedule = config_.lr_scheduler;
    const std::int64_t steps = known_steps();
    const std::int64_t warmup = schedule.warmup_steps;
    const std::int64_t decay = schedule.decay_steps;
    const Keys run = {"train.train_steps", "train.train_tokens", "train.global_batch_size", "train.seq_length"};
    const auto with_run = [&](Keys keys) {
      keys.insert(keys.end(), run.begin(), run.end());
      return keys;
    };
    if (steps > 0 && warmup > steps) {
      fault(with_run({"lr_scheduler.warmup_steps"}),
            "warmup_steps {} is above the {} steps of the run; right would be at most {}", warmup, steps, steps);
    }
    const bool falls = schedule.name == ScheduleName::linear || schedule.name == ScheduleName::cosine;
    if (falls && decay > 0 && decay <= warmup) {
      fault({"lr_scheduler.decay_steps", "lr_scheduler.warmup_steps"},
            "decay_steps {} is the step of the minimum and must be above warmup_steps {}; right would be {} or more, "
            "or 0 "
            "for the last step",
            decay, warmup, warmup + 1);
    }
    if (schedule.name != ScheduleName::wsd) return;
    if (decay == 0) {
      fault({"lr_scheduler.decay_steps", "lr_scheduler.name"},
            "wsd decays over the last decay_steps, which is 0; right would be the length of the decay{}, or name "
            "constant",
            steps > 0 ? fmt::format(", for example {}", std::max<std::int64_t>(1, steps / 10)) : std::string());
    } else if (steps > 0 && warmup <= steps && decay > steps - warmup) {
      fault(with_run({"lr_scheduler.decay_steps", "lr_scheduler.warmup_steps"}),
            "warmup_steps {} and decay_steps {} together are above the {} steps of the run; right would be decay_steps "
            "of "
            "at most {}",
            warmup, decay, steps, steps - warmup);
    }
  }

  void precision() {
    const PrecisionConfig& precision = config_.precision;
    const bool is_float64 = precision.dtype == Precision::float64;
    if (is_float64 && config_.train.device == DeviceChoice::cuda) {
      fault({"precision.dtype", "train.device"},
            "float64 runs on the CPU only, and device is cuda; right would be bf16, "
            "fp16 or float32, or device cpu");
    }
    if (is_float64 && config_.optimizer.moments_dtype == MomentsDtype::bf16) {
      fault({"optimizer.moments_dtype", "precision.dtype"},
            "bf16 moments with dtype float64; right would be auto, which is float64 then");
    }
    if (is_float64 && precision.grad_reduce_dtype == ReduceDtype::bf16) {
      fault({"precision.grad_reduce_dtype", "precision.dtype"},
            "bf16 gradients on the wire with dtype float64; right would be float32, which leaves float64 gradients as "
            "they "
            "are");
    }
    const LossScaleConfig& scale = precision.loss_scale;
    if (scale.min_scale > scale.init_scale) {
      fault({"precision.loss_scale.min_scale", "precision.loss_scale.init_scale"},
            "min_scale {} is above init_scale {}; right would be at most {}", scale.min_scale, scale.init_scale,
            scale.init_scale);
    }
    const OptimizerConfig& optimizer = config_.optimizer;
    if (optimizer.name == OptimizerName::sgd && optimizer.nesterov && optimizer.momentum == 0) {
      fault({"optimizer.nesterov", "optimizer.momentum", "optimizer.name"},
            "nesterov with momentum 0; right would be a momentum above 0, for example 0.9");
    }
  }

  void places() {
    if (config_.data.train.empty()) {
      fault({"data.train"}, "no training data is named; right would be files, folders or patterns, [shards/*.h5]");
    }
    if (config_.eval.interval > 0 && config_.data.validation.empty()) {
      fault({"data.validation", "eval.interval"},
            "evaluation every {} steps needs validation data, and none is named; right would be files, folders or "
            "patterns, or eval.interval 0",
            config_.eval.interval);
    }
    for (const auto* list : {&config_.data.train, &config_.data.validation}) {
      if (std::find(list->begin(), list->end(), "") == list->end()) continue;
      fault({list == &config_.data.train ? "data.train" : "data.validation"},
            "an entry is empty; right would be a path");
    }
    if (config_.train.output_dir.empty()) {
      fault({"train.output_dir"}, "is empty; right would be the path of the run folder, for example runs/default");
    }
    literal_path("train.output_dir", given_.train.output_dir);
    literal_path("checkpoint.save_dir", given_.checkpoint.save_dir);
    if (config_.checkpoint.load.empty()) {
      fault({"checkpoint.load"}, "is empty; right would be auto, none, or the path of a checkpoint folder");
    }
  }

  /// Folders that the run would make under a name that somebody meant a shell to replace.
  void literal_path(const char* key, const std::string& path) {
    for (std::size_t at = 0; at < path.size(); ++at) {
      const bool starts = at == 0 || path[at - 1] == '/';
      if (!(starts && (path[at] == '$' || (path[at] == '~' && at == 0)))) continue;
      fault({key}, "'{}' is taken as it is, and no shell replaces what begins with {}; right would be the path itself",
            path, path[at]);
      return;
    }
  }

  const Config given_;
  Config config_;
  int world_size_;
  std::vector<CrossFault> faults_;
};

/// Puts a value that is out of its range back into it. Returns whether it was.
bool repair(const ConfigItem& item) {
  if (item.is_section()) return false;
  if (auto* integer = std::get_if<std::int64_t*>(&*item.value)) {
    if (in_range(static_cast<double>(**integer), item.range)) return false;
    **integer = 1;
    return true;
  }
  if (auto* real = std::get_if<double*>(&*item.value)) {
    if (in_range(**real, item.range)) return false;
    **real = std::isfinite(item.range.high) ? (item.range.low + item.range.high) / 2 : 1;
    return true;
  }
  return false;
}

}  // namespace

std::vector<CrossFault> find_cross_faults(const Config& config, int world_size) {
  std::vector<CrossFault> faults;
  std::set<std::string> out_of_range;
  Config repaired = config;  // so that the checks below may divide and multiply
  for (const ConfigItem& item : schema_of(repaired).items) {
    const std::string value = item.is_section() ? std::string() : value_text(item);
    if (!repair(item)) continue;
    out_of_range.insert(item.path);
    faults.push_back(
        {{item.path}, fmt::format("is out of range (value '{}'); right would be {}", value, expectation(item))});
  }
  for (CrossFault& fault : Checker(repaired, world_size).run()) {
    const bool follows = std::any_of(fault.keys.begin(), fault.keys.end(),
                                     [&](const std::string& key) { return out_of_range.contains(key); });
    if (!follows) faults.push_back(std::move(fault));
  }
  return faults;
}

std::vector<std::string> validate(const Config& config, int world_size) {
  std::vector<std::string> lines;
  for (const CrossFault& fault : find_cross_faults(config, world_size)) lines.push_back(fault_line(fault, {}));
  return lines;
}

void check(const Config& config, int world_size, const ConfigOrigins& origins) {
  std::vector<std::string> lines;
  for (const CrossFault& fault : find_cross_faults(config, world_size)) lines.push_back(fault_line(fault, origins));
  if (!lines.empty()) throw_config_faults(lines);
}

void throw_config_faults(const std::vector<std::string>& lines) {
  const std::string head = lines.size() == 1 ? "the configuration has a fault:"
                                             : fmt::format("the configuration has {} faults:", lines.size());
  fail(ExitCode::config, "{}\n{}", head, fmt::join(lines, "\n"));
}

std::string fault_line(const CrossFault& fault, const ConfigOrigins& origins, const std::string& elsewhere) {
  for (const std::string& key : fault.keys) {
    if (origins.contains(key)) return fmt::format("{}: {}: {}", origins.at(key), key, fault.what);
  }
  const std::string& key = fault.keys.front();
  const auto section = origins.find(key.substr(0, key.rfind('.')));
  const std::string where = section != origins.end() ? section->second : elsewhere;
  return fmt::format("{}{}{}: {}", where, where.empty() ? "" : ": ", key, fault.what);
}

}  // namespace trainer
