// A folder with a small configuration and data, in which the trainer runs as a user runs it, and what it leaves there.
#pragma once
#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/launch/job.h"

namespace trainer::launch_test {

enum class Launcher : std::uint8_t {
  script,  // launch/mpirun.sh
  mpirun,  // as it is
  none,    // ranks that meet in a folder
};

/// How the trainer is started.
struct Start {
  int ranks = 1;                  // 1: without a launcher
  std::vector<std::string> sets;  // section.key=value
  std::string fault;              // TRAINER_FAULT
  bool print = false;             // TRAINER_PRINT=sample_ids,state_hash
  Launcher launcher = Launcher::script;
  std::string folder = "run";  // train.output_dir
};

class RunFolder {
 public:
  /// Writes config.yaml (2 layers, hidden 32, vocabulary 64, 16 tokens a sample, global batch 4, 20 steps, float32, one
  /// CPU thread, no checkpoint but at the end) and train.h5 with 200 samples of a learnable sequence.
  RunFolder();
  ~RunFolder();
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;

  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }

  std::unique_ptr<Job> start(const Start& how) const;
  Result run(const Start& how, double timeout_seconds = 60) const;
  /// run(), and a failure when it does not end with `exit_code`.
  Result expect_exit(int exit_code, const Start& how, double timeout_seconds = 60) const;
  /// The trainer with any arguments, one process.
  Result command(const std::string& arguments, const Environment& environment = {}) const;

  /// The lines of metrics.jsonl.
  std::vector<nlohmann::json> metrics(const std::string& run = "run") const;
  /// One column of it.
  std::vector<double> metric(const std::string& key, const std::string& run = "run") const;
  std::string log(int rank = 0, const std::string& run = "run") const;
  /// The newest hash of each step (counted from 1) on a rank.
  std::map<std::int64_t, std::string> hashes(int rank = 0, const std::string& run = "run") const;
  /// The windows of each step (counted from 1), in the order of the global batch, for a tensor-parallel size of 1.
  std::map<std::int64_t, std::vector<std::int64_t>> sample_ids(int ranks, const std::string& run = "run") const;
  /// Names of published checkpoints, sorted.
  std::vector<std::string> checkpoints(const std::string& run = "run") const;
  std::string checkpoint(std::int64_t step, const std::string& run = "run") const;

 private:
  std::string path_;
};

/// Element i of a sequence over `vocab_size` tokens that a model can learn, with some noise.
std::vector<std::int32_t> learnable_tokens(std::int64_t count, std::int64_t vocab_size);
/// A shard with documents of 23 tokens.
void write_shard(const std::string& path, const std::vector<std::int32_t>& ids, std::int64_t vocab_size,
                 const std::vector<std::uint8_t>& mask = {});

/// True when the sequences have the same length and differ at most by `relative` times the second.
::testing::AssertionResult near(const std::vector<double>& values, const std::vector<double>& expected,
                                double relative);

}  // namespace trainer::launch_test
