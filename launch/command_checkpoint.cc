#include <filesystem>
#include <fstream>
#include <iterator>

#include "core/checkpoint/load.h"
#include "core/runtime/counted.h"
#include "core/train/checkpointing.h"
#include "core/train/reporting/tables.h"
#include "core/train/same_model.h"
#include "launch/commands.h"
#include "parallel/self_communicator.h"

namespace trainer {
namespace {

namespace fs = std::filesystem;

void warn(const std::string& warning) {
  fmt::print(stderr, "trainer: {}\n", warning);
}

/// Where the configuration of the run in this folder says that it saves; empty for the default, and when it says
/// nothing.
std::string configured_save_dir(const fs::path& folder) {
  const fs::path path = folder / "config.resolved.yaml";
  if (!fs::is_regular_file(path)) return "";
  std::ifstream file(path);
  const std::string yaml{std::istreambuf_iterator<char>(file), {}};
  try {
    std::string save_dir = value_in(yaml, "checkpoint.save_dir");
    return save_dir == value_in(yaml, "train.output_dir") + "/checkpoints" ? "" : save_dir;
  } catch (const Error& damage) {
    warn(fmt::format("{} cannot be read, so checkpoints are looked for here: {}", path.string(), damage.what()));
    return "";
  }
}

/// Where the run of this folder saves, as seen from here. The default lies in the folder, wherever that has been moved
/// to.
std::string save_dir_of(const fs::path& folder) {
  std::string save_dir = configured_save_dir(folder);
  if (fs::is_directory(save_dir)) return save_dir;
  const fs::path inside = folder / "checkpoints";
  return fs::is_directory(inside) ? inside.string() : folder.string();
}

/// The checkpoint at `path`, or the newest complete one of a run folder or a folder of checkpoints.
CheckpointInfo open_checkpoint(const std::string& path) try {
  if (!fs::is_directory(path)) fail(ExitCode::checkpoint, "{}: there is no such folder", path);
  if (fs::exists(fs::path(path) / kManifestName)) return read_checkpoint_info(path);
  const std::string save_dir = save_dir_of(path);
  const auto newest = newest_checkpoint(save_dir, warn);
  if (!newest)
    fail(ExitCode::checkpoint,
         "{}: is no checkpoint (it has no {}), and there is no complete one in {}; right would be the folder of a "
         "checkpoint or of a run",
         path, kManifestName, save_dir);
  fmt::print("the newest complete checkpoint in {}:\n\n", save_dir);
  return *newest;
} catch (const fs::filesystem_error& error) {
  fail(ExitCode::checkpoint, "{}: cannot be read: {}", error.path1().string(), error.code().message());
}

std::string model_text(const CheckpointInfo& info) {
  std::int64_t parameters = 0;
  for (const auto& [name, tensor] : info.manifest.tensors)
    if (name.find('/') == std::string::npos) parameters += tensor.shape.numel();
  const auto value = [&](const char* key) { return value_in(info.manifest.config_yaml, key); };
  return fmt::format("{} parameters: {} blocks, hidden {}, {} heads ({} key/value), vocabulary {}",
                     format_count(static_cast<double>(parameters)), value("model.num_layers"),
                     value("model.hidden_size"), value("model.num_attention_heads"), value("model.num_key_value_heads"),
                     value("model.vocab_size"));
}

std::string summary(const CheckpointInfo& info) {
  const Manifest& manifest = info.manifest;
  const RunState state = run_state_from_json(manifest.state_json);
  const auto value = [&](const char* key) { return value_in(manifest.config_yaml, key); };
  const std::int64_t tokens_per_step = state.global_batch_size * state.seq_length;
  std::int64_t bytes = 0;
  for (const StoredFile& file : manifest.files) bytes += file.bytes;
  Table table(fmt::format("Checkpoint {}", info.path));
  const auto row = [&](const char* what, const std::string& text) { table.row({what, text}); };
  row("step", fmt::format("{}, {}", manifest.step, counted(state.update.updates, "update")));
  if (const std::int64_t skips = state.update.consecutive_skips; skips > 0)
    row("skipped",
        fmt::format("the last {}: the weights are those of step {}", counted(skips, "step"), manifest.step - skips));
  row("tokens",
      fmt::format("{} ({} a step: {} x {})", format_count(static_cast<double>(state.tokens)),
                  format_count(static_cast<double>(tokens_per_step)), state.global_batch_size, state.seq_length));
  row("saved", manifest.saved_at);
  row("model", model_text(info));
  const std::string precision = value("precision.dtype");
  row("precision", precision == "fp16" ? fmt::format("fp16, loss scale {:g}", state.update.loss_scale) : precision);
  row("optimizer", fmt::format("{}, peak lr {}", value("optimizer.name"), value("optimizer.lr")));
  row("layout", fmt::format("{}: {}", counted(manifest.world_size, "rank"), manifest.layout));
  row("size", fmt::format("{} in {}", format_bytes(bytes), counted(std::ssize(manifest.files), "file")));
  return fmt::format("{}\n{}\n", table.text(), manifest.versions);
}

std::string tensor_table(const Manifest& manifest) {
  Table table("Tensors", {"name", "type", "shape", "pieces", "size"});
  for (const auto& [name, tensor] : manifest.tensors)
    table.row({name, std::string(dtype_name(tensor.dtype)), to_text(tensor.shape), std::to_string(tensor.pieces.size()),
               format_bytes(tensor.shape.numel() * dtype_size(tensor.dtype))});
  return table.text();
}

}  // namespace

ExitCode command_checkpoint(const std::string& what, const std::string& path) {
  const CheckpointInfo info = open_checkpoint(path);
  fmt::print("{}", summary(info));
  if (what == "show") {
    fmt::print("{}", tensor_table(info.manifest));
    return ExitCode::ok;
  }
  SelfCommunicator self("self");
  if (const auto damage = verify_checkpoint(info, self)) fail(ExitCode::checkpoint, "{}", *damage);
  fmt::print("every checksum matches\n");
  return ExitCode::ok;
}

}  // namespace trainer
