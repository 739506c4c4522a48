#include "core/train/reporting/metric_files.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/files.h"
#include "tests/train/reporting/full_disk.h"

namespace trainer {
namespace {

StepRecord record_of(std::int64_t step) {
  StepRecord record;
  record.step = step;
  return record;
}

std::int64_t lines_in(const std::string& path) {
  const std::string text = read_file(path);
  return std::count(text.begin(), text.end(), '\n');
}

TEST(MetricFiles, AFullDiskIsSaidOnceAndSoIsItsEnd) {
  const TemporaryFolder folder;
  MetricFiles files(folder.path(), /*tensorboard=*/true, 0);
  EXPECT_EQ(files.append(record_of(1)), "");
  {
    const FullDisk full(200);
    const std::string said = files.append(record_of(2));
    for (const char* part :
         {"step 2", "metrics.jsonl' (File too large)", "/tb/events.out.tfevents.", "Training goes on", "make room"})
      EXPECT_NE(said.find(part), std::string::npos) << said;
    EXPECT_EQ(files.append(record_of(3)), "");
    EXPECT_LE(lines_in(folder / "metrics.jsonl"), 1);
    const std::string lost = files.finish();
    EXPECT_NE(lost.find("records in '" + folder / "metrics.jsonl'"), std::string::npos) << lost;
  }
  EXPECT_NE(files.append(record_of(4)).find("step 4: metrics can be written again"), std::string::npos);
  EXPECT_EQ(lines_in(folder / "metrics.jsonl"), 4);
  EXPECT_EQ(files.append(record_of(5)), "");
  EXPECT_EQ(files.finish(), "");
}

}  // namespace
}  // namespace trainer
