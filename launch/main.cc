// The command line: what can be asked, and how errors end the process.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <sstream>

#include "launch/bootstrap.h"
#include "launch/commands.h"
#include "launch/version.h"
#include "parallel/host_exchange.h"

namespace trainer {

std::string version_text() {
  using namespace build;
  std::string text = fmt::format("trainer {}\n  compiler   {} ({})\n  MPI        {}\n  CUDA       {}\n", kVersion,
                                 kCompiler, kBuildType, kMpi, kCuda);
  if (*kSanitizers != '\0') text += fmt::format("  sanitizers {}\n", kSanitizers);
  return text;
}

namespace {

constexpr const char* kIntroduction =
    R"(Trains transformer language models. One process is one rank; the launcher says how many:

  trainer --config a.yaml                                one process
  mpirun -np 4 trainer --config configs/tiny.yaml        four ranks
  trainer --config a.yaml --set optimizer.lr=1e-4        change one key
  trainer --config a.yaml --print-config                 what would run, and where each value comes from
  trainer plan --config a.yaml --ranks 8 --card h100     memory of a rank, before anything is started
  trainer config keys optimizer                          what can be set, and what it means

A run goes on from its newest checkpoint when it is started again (checkpoint.load: auto).)";

constexpr const char* kExitCodes =
    R"(Exit codes: 0 done, 2 configuration, 3 data, 4 checkpoint, 5 memory, 6 diverged, 7 communication,
75 stopped by a signal after saving (start again to go on), 1 anything else.)";

std::string trimmed(std::string text) {
  text.erase(text.find_last_not_of('\n') + 1);
  return text;
}

/// Everything that can be asked on the command line, and the function that answers.
struct CommandLine {
  CLI::App app{kIntroduction, "trainer"};
  ConfigOptions config;
  bool print_config = false;
  int print_ranks = 0;  // 0: not given
  std::string config_what, config_section, checkpoint_what, checkpoint_path;
  PrepareOptions prepare;
  DataCheckOptions data_check;
  PlanOptions plan_options;
  BenchCommandOptions bench_options;
  CLI::App *train = nullptr, *plan = nullptr, *bench = nullptr, *config_command = nullptr, *data = nullptr,
           *data_prepare = nullptr, *data_check_command = nullptr, *checkpoint = nullptr;

  CommandLine() {
    app.footer(kExitCodes);
    app.set_version_flag("--version", version_text());
    app.require_subcommand(0, 1);
    add_config_options(app);
    train = app.add_subcommand("train", "Train (also without this word)");
    add_config_options(*train);
    add_plan();
    add_bench();

    config_command = app.add_subcommand("config", "What can be configured");
    config_command
        ->add_option("what", config_what,
                     "keys: all keys with their meaning; docs: the same as Markdown; schema: JSON Schema")
        ->required()
        ->check(CLI::IsMember({"keys", "docs", "schema"}));
    config_command->add_option("section", config_section, "keys: of this section only");

    data = app.add_subcommand("data", "Make and check token shards");
    data->require_subcommand(1);
    data_prepare = data->add_subcommand("prepare", "Text files to token shards");
    data_prepare
        ->add_option("--input", prepare.inputs,
                     "Files, folders (.txt and .jsonl in them and below) or patterns; a document is a line of a .jsonl "
                     "file, and any other file")
        ->required();
    data_prepare->add_option("--output-dir", prepare.output_dir, "Folder for the shards")->required();
    data_prepare->add_option("--jsonl-key", prepare.jsonl_key, "Key of the text in .jsonl files")
        ->capture_default_str();
    data_prepare->add_option("--tokenizer", prepare.tokenizer, "bytes")->capture_default_str();
    data_prepare->add_option("--validation-fraction", prepare.validation_fraction, "Share at the end that is held out")
        ->capture_default_str();
    data_prepare->add_option("--shard-tokens", prepare.shard_tokens, "Tokens in a shard at most")
        ->capture_default_str();
    data_prepare->add_flag("--overwrite", prepare.overwrite, "Replace shards that are there");
    data_check_command = data->add_subcommand("check", "Read shards whole and check every id");
    data_check_command->add_option("files", data_check.files, "Shards, folders or patterns")->required();
    data_check_command->add_option("--vocab-size", data_check.vocab_size, "Ids must be below this")->required();
    data_check_command->add_option("--format", data_check.format, "As data.format")->capture_default_str();

    checkpoint = app.add_subcommand("checkpoint", "Look into a checkpoint");
    checkpoint
        ->add_option("what", checkpoint_what, "show: what is in it; verify: read it whole and compare all checksums")
        ->required()
        ->check(CLI::IsMember({"show", "verify"}));
    checkpoint->add_option("path", checkpoint_path, "A checkpoint's folder, or a run's: its newest complete one")
        ->required();
  }

  void add_config_options(CLI::App& command) {
    add_sources(command, config);
    CLI::Option* print = command.add_flag("--print-config", print_config, "Print the resolved configuration and stop");
    command
        .add_option("--ranks", print_ranks, "As for a job of so many ranks; default: what the parallel sizes ask for")
        ->check(CLI::Range(1, kMostRanks))
        ->needs(print);
  }

  void add_plan() {
    plan = app.add_subcommand("plan", "Memory of a rank by class; needs neither GPU nor data");
    add_sources(*plan, plan_options.config);
    plan->add_option("--ranks", plan_options.ranks, "Ranks of the job; default: what the parallel sizes ask for")
        ->check(CLI::Range(1, kMostRanks));
    plan->add_option(
        "--card", plan_options.card,
        "Say whether it fits (exit code 5: no) and what would: b200, h200, h100, a100-80, v100-32 ..., the name that "
        "nvidia-smi prints, or GiB");
  }

  void add_bench() {
    bench = app.add_subcommand("bench", "Speed on random tokens, and where the time of a step goes; needs no data");
    add_sources(*bench, bench_options.config);
    BenchOptions& options = bench_options.bench;
    const CLI::Range count(1, 1 << 20);
    bench->add_option("--steps", options.steps, "Timed steps")->capture_default_str()->check(count);
    bench->add_option("--warmup-steps", options.warmup_steps, "Steps before them")->capture_default_str()->check(count);
    bench->add_option("--profiled-steps", options.profiled_steps, "Steps after them, whose ops are timed")
        ->capture_default_str()
        ->check(count);
    bench->add_option("--floor-seconds", options.floor_seconds, "How long the floor is replayed; 0: not at all")
        ->capture_default_str()
        ->check(CLI::NonNegativeNumber);
    bench->add_flag("--comm", bench_options.comm,
                    "Instead of steps: all-reduce, all-gather and reduce-scatter over the groups of the job; without "
                    "--config over all ranks");
    bench->add_option("--comm-max-mib", bench_options.comm_max_mib, "Largest size of --comm")
        ->capture_default_str()
        ->check(CLI::Range(1, 1 << 16));
    bench->add_option("--json", bench_options.json, "File that gets the result as a line of JSON");
  }

  static void add_sources(CLI::App& command, ConfigOptions& options) {
    command.add_option("--config", options.files, "YAML file; several are merged, later ones win");
    command.add_option("--set", options.sets, "section.key=value; wins over files and TRAINER__SECTION__KEY variables");
  }

  static void check_given(const ConfigOptions& options) {
    if (options.files.empty() && options.sets.empty())
      fail(ExitCode::config, "nothing to do: give --config FILE (see trainer --help)");
  }

  /// Ranks that do different things wait for each other for long.
  void check_same_command(Bootstrap& bootstrap) const {
    const auto chosen = app.get_subcommands();
    const std::string mine = chosen.empty() ? "train" : chosen.front()->get_name();
    const std::vector<std::string> all = gather_strings(*bootstrap.world({}), mine);
    for (std::size_t rank = 1; rank < all.size(); ++rank)
      if (all[rank] != all[0])
        fail(ExitCode::config, "rank {} was started as 'trainer {}', rank 0 as 'trainer {}'", rank, all[rank], all[0]);
  }

  /// Whether the answer is what is printed. A training run leaves files, and goes on without a console.
  bool prints() const {
    const auto chosen = app.get_subcommands();
    return print_config || !(chosen.empty() || chosen.front() == train);
  }

  ExitCode run(Bootstrap& bootstrap) {
    check_same_command(bootstrap);
    if (*plan) check_given(plan_options.config);
    if (*bench && !bench_options.comm) check_given(bench_options.config);
    if (*bench) return command_bench(bench_options, bootstrap);
    if (*plan || *config_command) {
      if (bootstrap.rank() != 0) return ExitCode::ok;
      if (plan_options.ranks == 0 && bootstrap.size() > 1) plan_options.ranks = bootstrap.size();
      return *plan ? command_plan(plan_options) : command_config(config_what, config_section);
    }
    if ((*data || *checkpoint) && bootstrap.size() > 1)
      fail(ExitCode::config, "'trainer {}' works in one process: start it without the launcher of {} ranks",
           *data ? "data" : "checkpoint", bootstrap.size());
    if (*data_prepare) return command_data_prepare(prepare);
    if (*data_check_command) return command_data_check(data_check);
    if (*checkpoint) return command_checkpoint(checkpoint_what, checkpoint_path);
    check_given(config);
    if (print_config) {
      if (bootstrap.rank() != 0) return ExitCode::ok;
      const int started = bootstrap.size() > 1 ? bootstrap.size() : 0;
      return command_print_config(config, print_ranks > 0 ? print_ranks : started);
    }
    return command_train(config, bootstrap);
  }
};

/// A full disk is seen at the latest when the buffer is written out.
void check_printed() {
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0)
    fail(ExitCode::other, "standard output cannot be written to its end: is the disk full?");
}

}  // namespace
}  // namespace trainer

int main(int argc, char** argv) {
  using namespace trainer;
  CommandLine line;
  // Understood only after joining the job, so that its ranks answer once.
  return run_reporting_errors(argc, argv, [&](Bootstrap& bootstrap) {
    try {
      line.app.parse(argc, argv);
    } catch (const CLI::ParseError& e) {
      std::ostringstream answer, complaint;
      if (line.app.exit(e, answer, complaint) != 0) fail(ExitCode::config, "{}", trimmed(complaint.str()));
      if (bootstrap.rank() == 0) fmt::print("{}", answer.str());  // --help, --version
      check_printed();
      return ExitCode::ok;
    }
    const ExitCode code = line.run(bootstrap);
    if (line.prints()) check_printed();
    return code;
  });
}
