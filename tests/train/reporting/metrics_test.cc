#include "core/train/reporting/metrics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>
#include <vector>

#include "core/runtime/check.h"
#include "tests/support/files.h"

namespace trainer {
namespace {

StepRecord record_of(std::int64_t step) {
  StepRecord r;
  r.step = step;
  r.tokens = 1000 * step;
  r.loss = 2.5;
  return r;
}

std::vector<std::int64_t> steps_in(const std::string& path) {
  std::istringstream in(read_file(path));
  std::vector<std::int64_t> steps;
  for (std::string line; std::getline(in, line);)
    steps.push_back(nlohmann::json::parse(line).at("step").get<std::int64_t>());
  return steps;
}

TEST(Metrics, WritesEveryFieldWithItsType) {
  StepRecord r;
  r.step = 7;
  r.tokens = 9007199254740993;  // not a double: integers stay exact
  r.target_tokens = 4000;
  r.time = 1.5e9;
  r.loss = 0.1;
  r.lr = 3e-4;
  r.grad_norm = INFINITY;
  r.loss_scale = 65536;
  r.skipped = true;
  r.tokens_per_second = 2.5;
  r.step_ms = 3.5;
  r.tflops = 4.5;
  r.mfu = 0.5;
  r.data_wait_ms = 5.5;
  r.eval_loss = NAN;
  r.eval_tokens = 8;
  EXPECT_EQ(to_json(r),
            R"({"step":7,"tokens":9007199254740993,"target_tokens":4000,"time":1500000000.0,"loss":0.1,"lr":0.0003,)"
            R"("grad_norm":null,"loss_scale":65536.0,"skipped":true,"tokens_per_second":2.5,"step_ms":3.5,)"
            R"("tflops":4.5,"mfu":0.5,"data_wait_ms":5.5,"eval_loss":null,"eval_tokens":8})");
}

TEST(Metrics, LeavesOutWhatIsNotKnown) {
  const auto json = nlohmann::json::parse(to_json(record_of(1)));
  EXPECT_FALSE(json.contains("mfu"));
  EXPECT_FALSE(json.contains("eval_loss"));
  EXPECT_FALSE(json.contains("loss_scale"));
  EXPECT_EQ(json.at("loss"), 2.5);
}

TEST(Metrics, AResumeDropsStepsThatAreRunAgainAndTornLines) {
  const TemporaryFolder folder;
  const std::string path = folder / "run/metrics.jsonl";
  {
    MetricsWriter writer(path, 0);
    for (std::int64_t step = 1; step <= 6; ++step) writer.append(record_of(step));
  }
  write_file(path, read_file(path) + R"({"step":7,"tok)");  // killed while writing
  MetricsWriter writer(path, 4);
  EXPECT_EQ(steps_in(path), (std::vector<std::int64_t>{1, 2, 3, 4}));
  writer.append(record_of(5));
  EXPECT_EQ(steps_in(path), (std::vector<std::int64_t>{1, 2, 3, 4, 5}));
}

TEST(Metrics, ADamagedLineDoesNotCostTheOnesBehindIt) {
  const TemporaryFolder folder;
  const std::string path = folder / "metrics.jsonl";
  write_file(path, to_json(record_of(1)) + "\n" + std::string(5, '\0') + "\n[]\n" + to_json(record_of(2)));
  const MetricsWriter writer(path, 9);
  EXPECT_EQ(read_file(path), to_json(record_of(1)) + "\n" + to_json(record_of(2)) + "\n");
}

TEST(Metrics, ANewRunStartsWithAnEmptyFile) {
  const TemporaryFolder folder;
  const std::string path = folder / "metrics.jsonl";
  MetricsWriter(path, 0).append(record_of(1));
  const MetricsWriter writer(path, 0);
  EXPECT_EQ(read_file(path), "");
}

TEST(Metrics, ReportsAFileThatCannotBeOpened) {
  EXPECT_THROW(MetricsWriter("/dev/null/metrics.jsonl", 0), Error);
}

}  // namespace
}  // namespace trainer
