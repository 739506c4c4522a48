#include "core/train/reporting/progress.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <unistd.h>

#include <cstdlib>
#include <limits>

#include "tests/support/files.h"

namespace trainer {
namespace {

StepRecord record() {
  StepRecord r;
  r.step = 30;
  r.loss = 2.25;
  r.lr = 3e-4;
  r.grad_norm = 0.5;
  r.tokens_per_second = 12345;
  r.step_ms = 81.25;
  return r;
}

TEST(Progress, StepLineHoldsWhatIsKnown) {
  EXPECT_EQ(step_line(record(), 400, 200),
            "step 30/400 | loss 2.2500 | ETA 3m 20s | 12.3k tok/s | 81.2 ms | lr 3.00e-04 | norm 0.500");
  StepRecord r = record();
  r.skipped = true;
  r.loss_scale = 32768;
  r.eval_loss = 2.5;
  EXPECT_EQ(step_line(r, 400, std::nullopt),
            "step 30/400 | loss 2.2500 | skipped | eval 2.5000 | 12.3k tok/s | 81.2 ms | lr 3.00e-04 | norm 0.500 | "
            "scale 32768");
}

TEST(Progress, LineFitsTheWidthAndDropsFieldsWhole) {
  const std::string full = progress_line(record(), 400, 200, 200);
  EXPECT_EQ(full, "step 30/400   7% | loss 2.2500 | ETA 3m 20s | 12.3k tok/s | 81.2 ms | lr 3.00e-04 | norm 0.500");
  for (int width = 0; width < 120; ++width) {
    const std::string line = progress_line(record(), 400, 200, width);
    EXPECT_LE(line.size(), static_cast<std::size_t>(width));
    EXPECT_EQ(full.compare(0, line.size(), line), 0) << line;
  }
  EXPECT_EQ(progress_line(record(), 400, 200, 43), "step 30/400   7% | loss 2.2500 | ETA 3m 20s");
  EXPECT_EQ(progress_line(record(), 400, 200, 42), "step 30/400   7% | loss 2.2500");
}

TEST(Progress, NanHasNoSign) {
  StepRecord r = record();
  r.loss = r.grad_norm = -std::numeric_limits<double>::quiet_NaN();
  r.eval_loss = r.loss;
  EXPECT_EQ(step_line(r, 400, std::nullopt),
            "step 30/400 | loss nan | eval nan | 12.3k tok/s | 81.2 ms | lr 3.00e-04 | norm nan");
  r.loss = r.grad_norm = -std::numeric_limits<double>::infinity();
  r.eval_loss.reset();
  EXPECT_EQ(step_line(r, 400, std::nullopt),
            "step 30/400 | loss -inf | 12.3k tok/s | 81.2 ms | lr 3.00e-04 | norm -inf");
}

TEST(TimeLeft, IsTheMedianOfTheNewestSteps) {
  TimeLeft left;
  EXPECT_FALSE(left.seconds(100));
  left.add(60'000);  // the first step, with what only it has to do
  EXPECT_EQ(left.seconds(100), 6000);
  left.add(100);
  left.add(102);
  EXPECT_DOUBLE_EQ(left.seconds(100).value(), 10.2);
  EXPECT_FALSE(left.seconds(0));
  for (int i = 0; i < 15; ++i) left.add(200);  // older ones are forgotten
  EXPECT_DOUBLE_EQ(left.seconds(10).value(), 2);
}

TEST(Progress, IsOffInAFileAndWritesNothing) {
  const TemporaryFolder folder;
  const std::string path = folder / "out";
  std::FILE* out = std::fopen(path.c_str(), "wb");
  ASSERT_NE(out, nullptr);
  {
    Progress progress(ProgressMode::automatic, out, 400);
    EXPECT_FALSE(progress.on());
    progress.update(record(), 1.0);
  }
  std::fclose(out);
  EXPECT_EQ(read_file(path), "");
}

TEST(Progress, RewritesOneLine) {
  const TemporaryFolder folder;
  const std::string path = folder / "out";
  std::FILE* out = std::fopen(path.c_str(), "wb");
  ASSERT_NE(out, nullptr);
  {
    Progress progress(ProgressMode::on, out, 400);
    progress.update(record(), 370);
  }
  std::fclose(out);
  const std::string line = progress_line(record(), 400, 370, 79);
  EXPECT_EQ(read_file(path), fmt::format("\r{}\x1b[K\r\x1b[K", line));
}

TEST(Progress, FindsTheTerminalAndItsWidth) {
  int controller = -1, terminal = -1;
  winsize size{};
  size.ws_col = 123;
  size.ws_row = 40;
  ASSERT_EQ(openpty(&controller, &terminal, nullptr, nullptr, &size), 0);
  unsetenv("OMPI_COMM_WORLD_SIZE");
  EXPECT_TRUE(find_terminal(terminal).present);
  EXPECT_EQ(find_terminal(terminal).width, 123);
  // Under mpirun the pseudo-terminal says nothing: this test's parent has no such descriptor open.
  setenv("OMPI_COMM_WORLD_SIZE", "1", 1);
  const int high = fcntl(terminal, F_DUPFD, 900);
  EXPECT_FALSE(find_terminal(high).present);
  unsetenv("OMPI_COMM_WORLD_SIZE");
  close(high);
  close(terminal);
  close(controller);
}

}  // namespace
}  // namespace trainer
