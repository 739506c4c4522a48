#include "core/train/trainer.h"

#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>

#include "core/config/reader.h"
#include "core/config/resolve.h"
#include "core/runtime/counted.h"
#include "core/runtime/divide.h"
#include "core/runtime/log.h"
#include "core/runtime/phase_times.h"
#include "core/train/gemm_cache.h"
#include "core/train/profile_trace.h"
#include "core/train/run_folder.h"
#include "core/train/same_data.h"
#include "core/train/same_model.h"
#include "kernels/gemm_choices.h"
#include "optim/lr_schedule.h"
#include "optim/update_state.h"
#include "parallel/host_exchange.h"

namespace trainer {
namespace {

double unix_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

TokenDataset open_data(const Config& config, const std::vector<std::string>& patterns) {
  return TokenDataset::open(patterns, config.data.format, config.model.vocab_size,
                            config.data.intra_document_attention);
}

/// The last of the data that is opened at start.
std::optional<TokenDataset> open_validation(const Config& config, PhaseTimes& startup) {
  std::optional<TokenDataset> validation;
  if (!config.data.validation.empty()) validation = open_data(config, config.data.validation);
  startup.end("data");
  return validation;
}

/// Reads the first `tokens` once: an id that does not belong ends the run now, and not at its first evaluation.
void check_ids(const TokenDataset& data, std::int64_t tokens) {
  constexpr std::int64_t kAtOnce = std::int64_t{1} << 16;
  std::vector<std::int32_t> ids(kAtOnce);
  std::vector<std::uint8_t> mask(kAtOnce);
  for (std::int64_t first = 0; first < tokens; first += kAtOnce)
    data.read(first, std::min(kAtOnce, tokens - first), ids.data(), mask.data());
}

std::error_code why_not_writable(const std::filesystem::path& folder) {
  return access(folder.c_str(), W_OK | X_OK) == 0 ? std::error_code() : std::error_code(errno, std::generic_category());
}

std::string changes_table(const std::vector<ChangedSetting>& changed) {
  Table table("Changed since the checkpoint", {"key", "then", "now"});
  const auto shortened = [](const std::string& value) {  // of a list of files, for example
    constexpr std::size_t kWidth = 60;
    return value.size() <= kWidth ? value : value.substr(0, kWidth - 3) + "...";
  };
  for (const auto& [key, then, now] : changed) table.row({key, shortened(then), shortened(now)});
  return table.text();
}

/// A console that takes nothing more ends no run.
void print_to_console(const std::string& text) {
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
}

/// On stderr, and never an error of its own.
void say(const std::string& notice) {
  if (!notice.empty()) std::fputs(("trainer: " + notice + "\n").c_str(), stderr);
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines(1);
  for (const char c : text) {
    if (c == '\n')
      lines.emplace_back();
    else
      lines.back() += c;
  }
  return lines;
}

std::string serialise(const RankRow& row) {
  return fmt::format("{}\n{}\n{}\n{}\n{}\n{}\n{}\n{}\n{}", row.rank, row.host, row.pid, row.device, row.tp, row.dp,
                     row.pci, row.numa, row.nvlink);
}

RankRow parse_rank_row(const std::string& text) {
  const std::vector<std::string> lines = lines_of(text);
  TRAINER_CHECK(lines.size() == 9, "a rank described itself as '{}'", text);
  return {.rank = std::stoi(lines[0]),
          .host = lines[1],
          .pid = std::stoi(lines[2]),
          .device = lines[3],
          .tp = std::stoi(lines[4]),
          .dp = std::stoi(lines[5]),
          .pci = lines[6],
          .numa = lines[7],
          .nvlink = lines[8]};
}

}  // namespace

Trainer::Trainer(const Config& config, const Launch& launch, std::unique_ptr<Communicator> world, FaultPlan& fault,
                 Log& log)
    : config_(config),
      launch_(launch),
      fault_(fault),
      log_(log),
      print_(PrintRequests::from_environment()),
      train_data_(open_data(config, config.data.train)),
      validation_data_(open_validation(config, launch.startup)),
      train_windows_(num_windows(train_data_.num_tokens(), config.train.seq_length)),
      validation_windows_(validation_data_
                              ? num_windows(validation_data_->num_tokens(), config.train.seq_length, "data.validation")
                              : 0),
      train_sample_(token_sample(train_data_, train_windows_ * config.train.seq_length + 1)),
      total_steps_(total_steps(config, train_windows_)),
      engine_(config, launch.ctx, std::move(world), fault) {
  check_ranks_see_same_data(train_data_, "data.train", engine_.mesh().world());
  if (validation_data_) {
    check_ranks_see_same_data(*validation_data_, "data.validation", engine_.mesh().world());
    const std::int64_t windows = std::min(validation_windows_, evaluation_steps() * config.train.global_batch_size);
    if (lead()) check_ids(*validation_data_, windows * config.train.seq_length + 1);
  }
  open_run_folder();
  print_tables();
  launch.startup.end("memory");
  load();
  const Sampler sampler(static_cast<std::uint64_t>(config_.train.seed), train_windows_);
  loader_ = std::make_unique<Loader>(train_data_, sampler, loader_shape(config_, engine_.mesh()), step_);
  if (print_.sample_ids)
    engine_.observe([this](const MicroBatch& micro_batch) { log_.info(sample_ids_line(micro_batch)); });
  const double now = clock_seconds();
  meter_ = std::make_unique<ThroughputMeter>(
      ThroughputMeter::Setup{
          .tokens_per_step = tokens_per_step(),
          .flops_per_token = model_flops_per_token(config_.model, config_.train.seq_length),
          .num_devices = engine_.mesh().world().size(),
          .peak_tflops = launch_.peak_tflops,
      },
      now);
  if (!lead()) return;
  write_resolved_config();
  metric_files_ = std::make_unique<MetricFiles>(config_.train.output_dir, config_.logging.tensorboard, step_);
  progress_ = std::make_unique<Progress>(config_.logging.progress, stdout, total_steps_);
}

Trainer::~Trainer() {
  if (metric_files_) say(metric_files_->finish());
}

void Trainer::open_run_folder() {
  const std::filesystem::path folder = config_.train.output_dir;
  std::string problem;
  if (lead()) {
    check_run_folder(folder.string());
    std::error_code error;
    std::filesystem::create_directories(folder / "logs", error);
    if (!error) error = why_not_writable(folder);
    if (error)
      problem = fmt::format("cannot write to train.output_dir '{}': {}", folder.string(), error.message());
    else
      lock_.emplace(folder.string(), "train.output_dir");
  }
  problem = broadcast_string(engine_.mesh().world(), problem, 0);
  if (!problem.empty()) fail(ExitCode::config, "{}", problem);
  if (lead()) open_save_folder();
  if (!std::filesystem::exists(folder / kLockName))
    fail(ExitCode::config, "train.output_dir '{}', seen from '{}' on this rank, is not the folder of rank 0",
         folder.string(), std::filesystem::current_path().string());
  const std::string log = log_path(folder.string(), engine_.mesh().world().rank());
  check_place_of_file(log);
  log_.open_file(log);
}

/// Now, and not when hours of work are to be saved.
void Trainer::open_save_folder() {
  const CheckpointConfig& checkpoint = config_.checkpoint;
  if (checkpoint.save_interval == 0 && !checkpoint.save_at_end && !checkpoint.save_on_signal) return;
  std::error_code error;
  std::filesystem::create_directories(checkpoint.save_dir, error);
  if (!error) error = why_not_writable(checkpoint.save_dir);
  if (error)
    fail(ExitCode::checkpoint, "cannot write to checkpoint.save_dir '{}': {}", checkpoint.save_dir, error.message());
  if (!std::filesystem::equivalent(checkpoint.save_dir, config_.train.output_dir, error))
    save_lock_.emplace(checkpoint.save_dir, "checkpoint.save_dir");
}

/// Once it is clear that the run goes on: a start that is refused leaves the one of the run.
void Trainer::write_resolved_config() const {
  const std::string path = config_.train.output_dir + "/config.resolved.yaml", temporary = path + ".tmp";
  std::ofstream file(temporary);
  file << resolved_yaml(config_);
  file.close();
  if (file && std::rename(temporary.c_str(), path.c_str()) == 0) return;
  const int error = errno;
  std::remove(temporary.c_str());
  fail(ExitCode::config, "cannot write '{}': {}", path, std::strerror(error));
}

void Trainer::print_tables() {
  RankRow mine = launch_.identity;
  mine.tp = engine_.mesh().tp().rank();
  mine.dp = engine_.mesh().dp().rank();
  std::vector<RankRow> rows;
  for (const std::string& text : gather_strings(engine_.mesh().world(), serialise(mine)))
    rows.push_back(parse_rank_row(text));
  if (!lead()) return;
  print_to_console(fmt::format("{}\n{}\n{}\n", ranks_table(rows),
                               model_table(config_.model, engine_.model().layout().global_numel()),
                               memory_table(engine_.memory_estimate())));
}

RunState Trainer::run_state() const {
  return {.step = step_,
          .tokens = tokens_until(step_),
          .update = engine_.state(),
          .seed = config_.train.seed,
          .seq_length = config_.train.seq_length,
          .global_batch_size = config_.train.global_batch_size,
          .train_windows = train_windows_,
          .train_sample = train_sample_,
          .gemm_choices = gemm_choices(engine_.context())};
}

std::int64_t Trainer::tokens_until(std::int64_t step) const {
  return loaded_tokens_ + (step - loaded_step_) * tokens_per_step();
}

/// A run in another precision has no loss scale that fp16 could go on with.
UpdateState Trainer::state_to_go_on_with(const UpdateState& saved, const std::string& saved_yaml) const {
  if (config_.precision.dtype != Precision::fp16 || value_in(saved_yaml, "precision.dtype") == "fp16") return saved;
  UpdateState state = initial_update_state(config_.precision);
  state.updates = saved.updates;
  return state;
}

void Trainer::load() {
  Communicator& world = engine_.mesh().world();
  fault_.at("load");
  const auto found = find_checkpoint(config_.checkpoint.save_dir, config_.checkpoint.load, world,
                                     [this](const std::string& warning) { log_.warn(warning); });
  std::vector<ChangedSetting> changed;
  if (found) {
    const RunState saved = run_state_from_json(found->manifest.state_json);
    if (!config_.checkpoint.allow_data_change) check_same_data(saved, run_state());
    changed = changed_settings(found->manifest.config_yaml, resolved_yaml(config_));
    check_same_model(changed, config_.optimizer);
    load_pieces(*found, pieces_to_load(engine_), world);
    finish_load(engine_);
    engine_.restore_state(state_to_go_on_with(saved.update, found->manifest.config_yaml));
    if (!saved.gemm_choices.empty() && use_gemm_choices(engine_.context(), saved.gemm_choices) == 0)
      log_.warn(
          "the checkpoint's GEMM algorithms belong to another card or library: the run goes on with other rounding");
    step_ = saved_step_ = loaded_step_ = saved.step;
    loaded_tokens_ = saved.tokens;
    total_steps_ = total_steps(config_, train_windows_, step_, loaded_tokens_);
  } else {
    engine_.initialize();
  }
  synchronize(engine_.context());
  launch_.startup.end(found ? "checkpoint" : "weights");
  if (!lead()) return;
  print_to_console(fmt::format(
      "{}\n{}\n", schedule_table(config_, total_steps_, step_, tokens_until(total_steps_), engine_.mesh().dp().size()),
      throughput_note(config_.model, config_.train.seq_length, launch_.peak_tflops)));
  if (!changed.empty()) print_to_console(fmt::format("\n{}\n", changes_table(changed)));
  if (found)
    log_.info(fmt::format("resumed from {} after step {}", found->path, step_));
  else
    log_.info("starts a new run");
  if (config_.checkpoint.load != "auto") warn_of_newer_checkpoint(found ? found->path : "");
}

/// The same command started again, after a signal for example, does not go on unless it says auto.
void Trainer::warn_of_newer_checkpoint(const std::string& loaded) {
  const CheckpointConfig& checkpoint = config_.checkpoint;
  const auto newest = newest_checkpoint(std::filesystem::absolute(checkpoint.save_dir).lexically_normal().string(),
                                        [](const std::string&) {});
  std::error_code missing;  // of a run that loaded nothing
  if (newest && !std::filesystem::equivalent(newest->path, loaded, missing))
    log_.warn(
        fmt::format("checkpoint.load: {} leaves {} aside, the newest of checkpoint.save_dir, after step {}; "
                    "checkpoint.load: auto would go on from it",
                    checkpoint.load, newest->path, newest->manifest.step));
}

void Trainer::save() {
  if (saved_step_ == step_) return;
  meter_->pause(clock_seconds());
  const SaveResult result =
      save_checkpoint({.save_dir = config_.checkpoint.save_dir,
                       .step = step_,
                       .pieces = pieces_to_save(engine_),
                       .state_json = to_json(run_state()),
                       .config_yaml = resolved_yaml(config_),
                       .versions = launch_.versions,
                       .layout = fmt::format("dp={} tp={} zero={}", engine_.mesh().dp().size(),
                                             engine_.mesh().tp().size(), config_.parallelism.zero_stage),
                       .keep_last = config_.checkpoint.keep_last,
                       .is_good = is_after_an_update},
                      engine_.mesh().world(), fault_);
  saved_step_ = step_;
  meter_->resume(clock_seconds());
  if (!lead()) return;
  progress_->clear();
  for (const std::string& warning : result.warnings) log_.warn(warning);
  log_.info(fmt::format("saved {} ({}, {:.2f} s)", result.path, format_bytes(result.bytes), result.seconds));
  if (const std::int64_t skips = engine_.state().consecutive_skips; skips > 0)
    log_.warn(fmt::format(
        "its weights are those of step {}: {} in a row skipped. The newest checkpoint from before them stays, whatever "
        "checkpoint.keep_last says",
        step_ - skips, counted(skips, "step")));
}

std::int64_t Trainer::evaluation_steps() const {
  const std::int64_t batch = config_.train.global_batch_size;
  const std::int64_t all = ceil_div(validation_windows_, batch);
  return config_.eval.batches == 0 ? all : std::min(all, config_.eval.batches);
}

void Trainer::evaluate() {
  engine_.end_of_step();  // until then its time counts as training
  meter_->pause(clock_seconds());
  fault_.at("evaluate");
  Loader loader(*validation_data_, Sampler::in_order(validation_windows_), loader_shape(config_, engine_.mesh()), 0);
  last_eval_ = engine_.evaluate([&]() -> const MicroBatch& { return loader.next(); }, evaluation_steps());
  meter_->resume(clock_seconds());
}

void Trainer::settle(std::int64_t through) {
  while (settled_ < through) {
    ++settled_;
    const StepEnd& end = settled_ == step_ ? engine_.end_of_step() : engine_.end_of_previous_step();
    const UpdateState& state = end.state;
    meter_->step_done(end.seconds);
    if (!start_reported_) report_start();
    report(settled_, state);
    if (lead() && state.consecutive_skips == 1 && state.skipped != 0) report_skip(settled_, state);
    const std::int64_t running = launch_.step.exchange(settled_);  // a report is about the step that went wrong
    check_divergence(config_, state, engine_.model().layout());
    launch_.step = running;
  }
}

/// The first of a row: fp16 skips a step now and then to find its loss scale, other types never should.
void Trainer::report_skip(std::int64_t step, const UpdateState& state) {
  const bool scales = uses_loss_scaling(config_.precision);
  const std::string text = fmt::format("step {} skipped: {}{}", step, why_skipped(state, engine_.model().layout()),
                                       scales ? fmt::format("; loss scale {} from now on", state.loss_scale) : "");
  progress_->clear();
  if (scales)
    log_.info(text);
  else
    log_.warn(text);
}

void Trainer::report_start() {
  start_reported_ = true;
  launch_.startup.end("first step");
  log_.info(fmt::format("start-up: {}; first step finished {:.2f} s after the start of the process",
                        launch_.startup.text(), launch_.startup.seconds()));
  if (engine_.context().device.kind != DeviceKind::cuda) return;
  const DeviceProperties card = device_properties(engine_.context().device);
  log_.info(plan_check(engine_.memory_estimate(), card.total_bytes - card.free_bytes));
}

void Trainer::report(std::int64_t step, const UpdateState& state) {
  const bool due = step % config_.logging.interval == 0 || step == total_steps_ || last_eval_.has_value();
  if (!lead() || !due) return;
  StepRecord record;
  record.step = step;
  record.tokens = tokens_until(step);
  record.target_tokens = static_cast<std::int64_t>(state.target_tokens);
  record.time = unix_seconds();
  record.loss = (state.loss_sum + state.z_loss_sum) / state.target_tokens;
  record.lr = learning_rate(config_.lr_scheduler, config_.optimizer.lr, step - 1, total_steps_);
  record.grad_norm = state.grad_norm;
  if (uses_loss_scaling(config_.precision)) record.loss_scale = state.loss_scale;
  record.skipped = state.skipped != 0;
  if (const auto window = meter_->close_window()) {
    record.tokens_per_second = window->tokens_per_second;
    record.step_ms = window->step_ms;
    time_left_.add(window->step_ms);
    record.tflops = window->tflops;
    record.mfu = window->mfu;
  }
  record.data_wait_ms = 1e3 * (loader_->wait_seconds() - data_wait_);
  data_wait_ = loader_->wait_seconds();
  if (last_eval_) {
    record.eval_loss = last_eval_->loss;
    record.eval_tokens = last_eval_->target_tokens;
  }
  if (const std::string notice = metric_files_->append(record); !notice.empty()) {
    progress_->clear();
    say(notice);
  }
  const std::optional<double> seconds_left = time_left_.seconds(total_steps_ - step);
  if (progress_->on())
    progress_->update(record, seconds_left);
  else
    log_.info(step_line(record, total_steps_, seconds_left));
}

/// Those that were planned and have happened on no rank: whoever plans one waits for it.
void Trainer::report_faults() {
  std::string mine;
  for (const FaultPlan::Outcome& outcome : fault_.outcomes())
    mine += fmt::format("{}{}\n", outcome.happened ? '+' : '-', outcome.text);
  std::set<std::string> planned, happened;
  for (const std::string& text : gather_strings(engine_.mesh().world(), mine))
    for (const std::string& line : lines_of(text)) {
      if (line.empty()) continue;
      planned.insert(line.substr(1));
      if (line[0] == '+') happened.insert(line.substr(1));
    }
  if (!lead()) return;
  for (const std::string& text : planned)
    if (!happened.contains(text))
      log_.warn(fmt::format("TRAINER_FAULT: '{}' has not happened in {}", text,
                            step_ > loaded_step_ ? fmt::format("steps {} to {}", loaded_step_ + 1, step_)
                                                 : "this start, which ran no step"));
}

bool Trainer::stop_agreed() {
  return max_over_ranks(engine_.mesh().world(), launch_.stop.load() ? 1 : 0) != 0;
}

void Trainer::warm_up() {
  if (engine_.context().device.kind == DeviceKind::cpu) return;  // nothing to choose or to build there
  const Sampler sampler(static_cast<std::uint64_t>(config_.train.seed), train_windows_);
  Loader probe(train_data_, sampler, loader_shape(config_, engine_.mesh()), step_);
  if (const std::string warning = warm_up_remembering(engine_, probe.next()); !warning.empty()) log_.warn(warning);
  launch_.startup.end("GEMM choices and attention plans");
  meter_->restart(clock_seconds());
}

ExitCode Trainer::run() {
  const CheckpointConfig& checkpoint = config_.checkpoint;
  ProfileWindow profile(config_, engine_, engine_.mesh().world().rank());
  settled_ = step_;
  warm_up();
  while (step_ < total_steps_) {
    fault_.set_step(step_ + 1);
    launch_.step = step_ + 1;
    fault_.at("step");
    const double lr = learning_rate(config_.lr_scheduler, config_.optimizer.lr, step_, total_steps_);
    profile.before_step(step_ + 1);
    engine_.step([this]() -> const MicroBatch& { return loader_->next(); }, step_, lr);
    ++step_;
    if (profile.after_step(step_)) log_.info(fmt::format("wrote the trace {}", profile.path()));
    // What a GPU decided is read a step late, so that the host never waits for the step that is running. On the CPU the
    // step is done: read late, its time would count for the step before.
    settle(step_ - 1);
    const bool last = step_ == total_steps_;
    const bool evaluates = validation_data_ && ((config_.eval.interval > 0 && step_ % config_.eval.interval == 0) ||
                                                (last && config_.eval.at_end));
    const bool saves =
        (checkpoint.save_interval > 0 && step_ % checkpoint.save_interval == 0) || (last && checkpoint.save_at_end);
    const bool stops = !last && stop_agreed();
    if (stops && lead()) {
      progress_->clear();
      log_.info(fmt::format("asked to stop: finishes step {}{}; a second signal ends the job at once", step_,
                            checkpoint.save_on_signal ? " and saves" : ""));
    }
    if (evaluates) evaluate();
    const bool first = !start_reported_, done = engine_.context().device.kind == DeviceKind::cpu;
    if (first || done || last || evaluates || saves || stops || print_.state_hash) settle(step_);
    last_eval_.reset();
    if (print_.state_hash) log_.info(fmt::format("state_hash step {}: {:016x}", step_, state_hash(engine_)));
    if (saves || (stops && checkpoint.save_on_signal)) save();
    if (stops) {
      if (lead()) {
        progress_->clear();
        log_.info(fmt::format("stopped by a signal after step {}; start again{} to go on", step_,
                              checkpoint.load == "auto" ? "" : " with checkpoint.load: auto"));
      }
      report_faults();
      return ExitCode::stopped;
    }
  }
  const std::int64_t skips = engine_.state().consecutive_skips;
  if (lead()) {
    progress_->clear();
    log_.info(fmt::format("done: {}", counted(step_, "step")));
    if (skips > 0) log_.warn(fmt::format("the last {} skipped: no weight was changed", counted(skips, "step")));
  }
  report_faults();
  return ExitCode::ok;
}

}  // namespace trainer
