// One function a subcommand. Each gets its parsed options and returns the exit code; errors are thrown.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "core/runtime/check.h"
#include "core/train/bench.h"
#include "data/prepare.h"

namespace trainer {
class Bootstrap;

/// Of a job that is planned or printed, not started.
inline constexpr int kMostRanks = 1 << 20;

struct ConfigOptions {
  std::vector<std::string> files;
  std::vector<std::string> sets;
};

struct PlanOptions {
  ConfigOptions config;
  int ranks = 0;  // 0: as many as the configuration's parallel sizes need, at least one
  std::optional<std::string> card;
};

struct BenchCommandOptions {
  ConfigOptions config;
  BenchOptions bench;
  std::string json;   // file that gets a line; empty: none
  bool comm = false;  // the groups' communication alone
  std::int64_t comm_max_mib = 1024;
};

struct DataCheckOptions {
  std::vector<std::string> files;
  std::string format = "auto";
  std::int64_t vocab_size = 0;
};

/// `trainer [train]`: trains, on all ranks of the job.
ExitCode command_train(const ConfigOptions& options, Bootstrap& bootstrap);
/// `trainer --print-config`: the resolved configuration with the origin of each value, as for a job of so many ranks;
/// 0: as many as the configuration's parallel sizes need.
ExitCode command_print_config(const ConfigOptions& options, int ranks);
/// `trainer plan`: the memory of a rank; exit code memory when it does not fit the card that was named, config when it
/// cannot run there.
ExitCode command_plan(const PlanOptions& options);
/// `trainer bench`: speed on random tokens, on all ranks of the job.
ExitCode command_bench(const BenchCommandOptions& options, Bootstrap& bootstrap);
/// `trainer config docs|schema|keys [SECTION]`
ExitCode command_config(const std::string& what, const std::string& section);
/// `trainer data prepare`
ExitCode command_data_prepare(const PrepareOptions& options);
/// `trainer data check`
ExitCode command_data_check(const DataCheckOptions& options);
/// `trainer checkpoint show|verify PATH`
ExitCode command_checkpoint(const std::string& what, const std::string& path);

/// The text of `trainer --version`.
std::string version_text();

}  // namespace trainer
