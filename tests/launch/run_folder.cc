#include "tests/launch/run_folder.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <random>
#include <span>
#include <sstream>
#include <stdexcept>
#include <tuple>

#include "data/shard_writer.h"
#include "tests/support/files.h"

namespace trainer::launch_test {

namespace fs = std::filesystem;

namespace {

constexpr const char* kConfig =
    R"(model: {hidden_size: 32, num_layers: 2, num_attention_heads: 4, num_key_value_heads: 2,
        intermediate_size: 64, vocab_size: 64}
train: {seq_length: 16, global_batch_size: 4, train_steps: 20, device: cpu, output_dir: run}
optimizer: {lr: 3e-3}
precision: {dtype: float32}
data: {train: [train.h5]}
)";

std::string quoted(const std::string& text) {
  return "'" + text + "'";
}

}  // namespace

RunFolder::RunFolder() {
  std::string name = (fs::temp_directory_path() / "trainer_run_XXXXXX").native();
  if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("no temporary folder");
  path_ = fs::canonical(name);
  write_file(*this / "config.yaml", kConfig);
  write_shard(*this / "train.h5", learnable_tokens(200 * 16 + 1, 64), 64);
}

RunFolder::~RunFolder() {
  std::error_code ignored;
  if (::testing::Test::HasFailure()) return;  // for whoever looks into it
  fs::remove_all(path_, ignored);
}

std::unique_ptr<Job> RunFolder::start(const Start& how) const {
  std::string command = "exec ";
  constexpr const char* kLaunchers[] = {"launch/mpirun.sh -np", "tests/support/mpirun.sh", "tests/support/tcprun.sh"};
  if (how.ranks > 1)
    command +=
        fmt::format("{}/{} {} ", TRAINER_SOURCE_DIR, kLaunchers[static_cast<std::size_t>(how.launcher)], how.ranks);
  command += fmt::format("{} --config config.yaml --set train.output_dir={}", TRAINER_BINARY, how.folder);
  for (const std::string& set : how.sets) command += " --set " + quoted(set);
  Environment environment{{"OMP_NUM_THREADS", "1"}, {"TRAINER_FAULT", how.fault}};
  if (how.print) environment["TRAINER_PRINT"] = "sample_ids,state_hash";
  return std::make_unique<Job>(path_, command, environment);
}

Result RunFolder::run(const Start& how, double timeout_seconds) const {
  const std::unique_ptr<Job> job = start(how);
  Result result = job->wait(timeout_seconds);
  EXPECT_FALSE(result.timed_out) << "no end within " << timeout_seconds << " s\n" << result.out << result.err;
  EXPECT_TRUE(job->is_gone()) << "processes are left";
  return result;
}

Result RunFolder::expect_exit(int exit_code, const Start& how, double timeout_seconds) const {
  Result result = run(how, timeout_seconds);
  EXPECT_EQ(result.exit_code, exit_code) << path_ << "\n" << result.out << result.err;
  return result;
}

Result RunFolder::command(const std::string& arguments, const Environment& environment) const {
  Job job(path_, fmt::format("exec {} {}", TRAINER_BINARY, arguments), environment);
  return job.wait();
}

std::vector<nlohmann::json> RunFolder::metrics(const std::string& run) const {
  std::vector<nlohmann::json> records;
  for (const std::string& line : lines_of(read_file(*this / (run + "/metrics.jsonl"))))
    records.push_back(nlohmann::json::parse(line));
  return records;
}

std::vector<double> RunFolder::metric(const std::string& key, const std::string& run) const {
  std::vector<double> values;
  for (const nlohmann::json& record : metrics(run)) values.push_back(record.at(key).get<double>());
  return values;
}

std::string RunFolder::log(int rank, const std::string& run) const {
  return read_file(fmt::format("{}/{}/logs/rank-{:04}.log", path_, run, rank));
}

std::map<std::int64_t, std::string> RunFolder::hashes(int rank, const std::string& run) const {
  std::map<std::int64_t, std::string> found;
  const std::string key = "state_hash step ";
  for (const std::string& line : lines_of(log(rank, run))) {
    const std::size_t at = line.find(key);
    if (at == std::string::npos) continue;
    std::istringstream rest(line.substr(at + key.size()));
    std::int64_t step = 0;
    char colon = 0;
    std::string hash;
    if (rest >> step >> colon >> hash) found[step] = hash;
  }
  return found;
}

std::map<std::int64_t, std::vector<std::int64_t>> RunFolder::sample_ids(int ranks, const std::string& run) const {
  std::map<std::tuple<std::int64_t, int, std::int64_t>, std::vector<std::int64_t>> micro_batches;
  const std::string key = "sample_ids step ";
  for (int rank = 0; rank < ranks; ++rank) {
    for (const std::string& line : lines_of(log(rank, run))) {
      const std::size_t at = line.find(key);
      if (at == std::string::npos) continue;
      std::istringstream rest(line.substr(at + key.size()));
      std::int64_t step = 0, micro = 0;
      std::string word;
      rest >> step >> word >> micro >> word;
      std::vector<std::int64_t>& ids = micro_batches[{step, rank, micro}];
      ids.clear();  // a step that was run again
      for (std::int64_t id = 0; rest >> id;) ids.push_back(id);
    }
  }
  std::map<std::int64_t, std::vector<std::int64_t>> steps;
  for (const auto& [place, ids] : micro_batches) {
    std::vector<std::int64_t>& all = steps[std::get<0>(place)];
    all.insert(all.end(), ids.begin(), ids.end());
  }
  return steps;
}

std::vector<std::string> RunFolder::checkpoints(const std::string& run) const {
  std::vector<std::string> names;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(*this / (run + "/checkpoints"), none))
    if (entry.path().filename().string().starts_with("step_")) names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

std::string RunFolder::checkpoint(std::int64_t step, const std::string& run) const {
  return fmt::format("{}/{}/checkpoints/step_{:08}", path_, run, step);
}

std::vector<std::int32_t> learnable_tokens(std::int64_t count, std::int64_t vocab_size) {
  std::mt19937 random(7);
  std::vector<std::int32_t> ids;
  std::int64_t id = 1;
  for (std::int64_t i = 0; i < count; ++i) {
    ids.push_back(static_cast<std::int32_t>(id));
    id = (5 * id + 3) % vocab_size;
    if (random() % 10 == 0) id = static_cast<std::int64_t>(random()) % vocab_size;
  }
  return ids;
}

void write_shard(const std::string& path, const std::vector<std::int32_t>& ids, std::int64_t vocab_size,
                 const std::vector<std::uint8_t>& mask) {
  ShardWriter writer(path, {.tokens = static_cast<std::int64_t>(ids.size()),
                            .vocab_size = vocab_size,
                            .tokenizer = "numbers",
                            .loss_mask = !mask.empty()});
  constexpr std::size_t kDocument = 23;
  for (std::size_t at = 0; at < ids.size(); at += kDocument) {
    const std::size_t count = std::min(kDocument, ids.size() - at);
    writer.begin_document();
    writer.append(std::span(ids).subspan(at, count),
                  mask.empty() ? std::span(mask) : std::span(mask).subspan(at, count));
  }
  writer.finish();
  writer.publish();
}

::testing::AssertionResult near(const std::vector<double>& values, const std::vector<double>& expected,
                                double relative) {
  if (values.size() != expected.size() || values.empty())
    return ::testing::AssertionFailure() << values.size() << " values, expected " << expected.size();
  for (std::size_t i = 0; i < values.size(); ++i)
    if (!(std::abs(values[i] - expected[i]) <= relative * std::abs(expected[i])))  // NaN is not near
      return ::testing::AssertionFailure()
             << fmt::format("value {}: {:.17g}, expected {:.17g}", i, values[i], expected[i]);
  return ::testing::AssertionSuccess();
}

}  // namespace trainer::launch_test
