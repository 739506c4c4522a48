#include "core/train/checkpointing.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/runtime/device.h"

namespace trainer {
using ops::ShardTensors;

namespace {

/// The tensors of a shard that are stored, one tensor of the checkpoint each.
enum class Part { master, first_moment, second_moment };

std::string tensor_name(const Config& config, Part part, const std::string& parameter) {
  if (part == Part::master) return parameter;
  if (config.optimizer.name == OptimizerName::sgd) return "momentum_buffer/" + parameter;
  return (part == Part::first_moment ? "exp_avg/" : "exp_avg_sq/") + parameter;
}

/// The state of one block's shard on this rank, weights included.
ShardTensors live_shard(Engine& engine, int block) {
  ShardTensors shard = engine.optimizer().tensors(block);
  shard.weight = engine.weights().shard(block);
  return shard;
}

Piece make_piece(Engine& engine, Part part, ParamId id, const Box& box, std::int64_t shard_offset) {
  const ParamDecl& decl = engine.model().layout().decl(id);
  const ShardTensors shard = live_shard(engine, decl.block).flat_range(shard_offset, box.numel());
  const Dtype master = engine.model().shape().accumulator;
  const Tensor moment = part == Part::first_moment ? shard.m : shard.v;
  Piece piece;
  piece.tensor = tensor_name(engine.config(), part, decl.name);
  piece.global = {decl.dims, decl.rows, decl.cols};
  piece.box = box;
  if (part == Part::master) {
    piece.dtype = master;
    piece.read = [&engine, shard, master](std::int64_t first, std::int64_t count, void* host) {
      const Context& ctx = engine.context();
      const std::int64_t bytes = count * dtype_size(master);
      void* staged = stage_for_output(ctx, host, bytes);
      ops::master_read(ctx, {.shard = shard.flat_range(first, count), .out = tensor_over(staged, master, 1, count)});
      stage_out(ctx, staged, host, bytes);
    };
    piece.write = [&engine, shard, master](std::int64_t first, std::int64_t count, const void* host) {
      void* staged = stage_in(engine.context(), host, count * dtype_size(master));
      const Tensor in = tensor_over(staged, master, 1, count);
      ops::master_write(engine.context(), {.in = in, .shard = shard.flat_range(first, count)});
    };
    return piece;
  }
  piece.dtype = moment.dtype;
  // Offloaded moments are the host's own, and as they should be once the device's queue is empty.
  const Context& ctx = engine.context();
  const Context place = engine.optimizer().offloaded() ? Context{} : ctx;
  piece.read = [&ctx, place, moment](std::int64_t first, std::int64_t count, void* host) {
    const Tensor from = moment.flat_range(first, count);
    synchronize(ctx);
    copy_to_host(place, host, from.data, from.bytes());
    synchronize(place);
  };
  piece.write = [&ctx, place, moment](std::int64_t first, std::int64_t count, const void* host) {
    const Tensor to = moment.flat_range(first, count);
    synchronize(ctx);
    copy_to_device(place, to.data, host, to.bytes());
    synchronize(place);
  };
  return piece;
}

/// Cuts elements [first, last) of a local parameter [rows, cols] into at most three boxes of whole rows or parts of one
/// row, and calls use(first element, box in local coordinates).
template <class Use>
void for_each_row_aligned(std::int64_t first, std::int64_t last, std::int64_t cols, const Use& use) {
  while (first < last) {
    const std::int64_t row = first / cols, col = first % cols;
    const bool whole = col == 0 && last - first >= cols;
    const std::int64_t rows = whole ? (last - first) / cols : 1;
    const std::int64_t width = whole ? cols : std::min(cols - col, last - first);
    use(first, Box{row, rows, col, width});
    first += rows * width;
  }
}

/// Pieces of the elements of block buffers that lie in `range(block)`; parameters are chosen by `wanted(id)`.
template <class Range, class Wanted>
std::vector<Piece> collect(Engine& engine, const Range& range, const Wanted& wanted) {
  std::vector<Piece> pieces;
  const ParamLayout& layout = engine.model().layout();
  for (ParamId id = 0; id < layout.num_params(); ++id) {
    if (!wanted(id)) continue;
    const ParamDecl& decl = layout.decl(id);
    const LocalParam& local = layout.local(id);
    const FlatRange mine = intersect(local.real_range(), range(decl.block));
    const std::int64_t shard_first = engine.optimizer().range(decl.block).first;
    const std::int64_t first = mine.first - local.offset, last = mine.end() - local.offset;
    const ShardTensors shard = engine.optimizer().tensors(decl.block);
    for_each_row_aligned(first, last, local.cols, [&](std::int64_t element, Box box) {
      const std::int64_t shard_offset = local.offset + element - shard_first;
      box.row0 += local.global_row;
      box.col0 += local.global_col;
      pieces.push_back(make_piece(engine, Part::master, id, box, shard_offset));
      if (shard.m) pieces.push_back(make_piece(engine, Part::first_moment, id, box, shard_offset));
      if (shard.v) pieces.push_back(make_piece(engine, Part::second_moment, id, box, shard_offset));
    });
  }
  return pieces;
}

}  // namespace

std::string to_json(const RunState& state) {
  const UpdateState& u = state.update;
  const nlohmann::json json = {
      {"step", state.step},
      {"tokens", state.tokens},
      {"loss_scaler",
       {{"scale", u.loss_scale}, {"growth_tracker", u.growth_tracker}, {"hysteresis_left", u.hysteresis_left}}},
      {"updates", u.updates},
      {"consecutive_skips", u.consecutive_skips},
      {"data",
       {{"seed", state.seed},
        {"seq_length", state.seq_length},
        {"global_batch_size", state.global_batch_size},
        {"train_windows", state.train_windows},
        {"train_sample", state.train_sample}}},
      {"gemm_choices", state.gemm_choices}};
  return json.dump();
}

RunState run_state_from_json(const std::string& text) {
  try {
    const nlohmann::json json = nlohmann::json::parse(text);
    RunState state;
    state.step = json.at("step").get<std::int64_t>();
    state.update.loss_scale = json.at("loss_scaler").at("scale").get<double>();
    state.update.growth_tracker = json.at("loss_scaler").at("growth_tracker").get<std::int64_t>();
    state.update.hysteresis_left = json.at("loss_scaler").at("hysteresis_left").get<std::int64_t>();
    state.update.updates = json.at("updates").get<std::int64_t>();
    state.update.consecutive_skips = json.at("consecutive_skips").get<std::int64_t>();
    const nlohmann::json& data = json.at("data");
    state.seed = data.at("seed").get<std::int64_t>();
    state.seq_length = data.at("seq_length").get<std::int64_t>();
    state.global_batch_size = data.at("global_batch_size").get<std::int64_t>();
    state.train_windows = data.at("train_windows").get<std::int64_t>();
    state.train_sample = data.value("train_sample", "");  // checkpoints of before this key: not known
    // Checkpoints of before this key: right as long as the batch has always been the same.
    state.tokens = json.value("tokens", state.step * state.global_batch_size * state.seq_length);
    state.gemm_choices = json.at("gemm_choices").get<std::string>();
    return state;
  } catch (const nlohmann::json::exception& e) {
    fail(ExitCode::checkpoint, "the checkpoint's run state cannot be read: {}", e.what());
  }
}

bool is_after_an_update(const std::string& state_json) {
  return run_state_from_json(state_json).update.consecutive_skips == 0;
}

void check_same_data(const RunState& saved, const RunState& now) {
  std::string differences;
  const auto compare = [&](const char* what, const auto& then, const auto& today) {
    if (then != today) differences += fmt::format("\n  {}: {} in the checkpoint, {} now", what, then, today);
  };
  compare("train.seed", saved.seed, now.seed);
  compare("train.seq_length", saved.seq_length, now.seq_length);
  compare("train.global_batch_size", saved.global_batch_size, now.global_batch_size);
  compare("windows in data.train", saved.train_windows, now.train_windows);
  if (differences.empty() && !saved.train_sample.empty())
    compare("tokens in data.train (hash of a sample)", saved.train_sample, now.train_sample);
  if (!differences.empty())
    fail(
        ExitCode::config,
        "this resume would repeat or leave out samples:{}\nSet them as they were, or set checkpoint.allow_data_change: "
        "true to go on in the new order from step {}.",
        differences, saved.step);
}

std::vector<Piece> pieces_to_save(Engine& engine) {
  const ParamLayout& layout = engine.model().layout();
  const Communicator& replicas = engine.mesh().zero_replicas();
  const auto part_of_replica = [&](int block) {
    const FlatRange shard = engine.optimizer().range(block);
    const std::int64_t first = shard.count * replicas.rank() / replicas.size();
    const std::int64_t last = shard.count * (replicas.rank() + 1) / replicas.size();
    return FlatRange{shard.first + first, last - first};
  };
  return collect(engine, part_of_replica,
                 [&](ParamId id) { return layout.local(id).copy_index == id % layout.local(id).copies; });
}

std::vector<Piece> pieces_to_load(Engine& engine) {
  return collect(
      engine, [&](int block) { return engine.optimizer().range(block); }, [](ParamId) { return true; });
}

void finish_load(Engine& engine) {
  for (int block = 0; block < engine.model().layout().num_blocks(); ++block)
    engine.weights().updated(engine.context(), block);
}

}  // namespace trainer
