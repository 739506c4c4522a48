#include "core/train/reporting/progress.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/runtime/check.h"
#include "core/runtime/environment.h"
#include "core/runtime/median.h"
#include "core/train/reporting/tables.h"

namespace trainer {
namespace {

constexpr std::size_t kTimesKept = 15;

/// Whether the processor makes NaN with or without a sign says nothing.
double without_sign_of_nan(double value) {
  return std::isnan(value) ? std::fabs(value) : value;
}

std::vector<std::string> fields(const StepRecord& r, std::optional<double> seconds_left) {
  std::vector<std::string> out{fmt::format("loss {:.4f}", without_sign_of_nan(r.loss))};
  if (r.skipped) out.emplace_back("skipped");
  if (seconds_left) out.push_back("ETA " + format_duration(*seconds_left));
  if (r.eval_loss) out.push_back(fmt::format("eval {:.4f}", without_sign_of_nan(*r.eval_loss)));
  if (r.tokens_per_second) out.push_back(format_count(*r.tokens_per_second) + " tok/s");
  if (r.mfu) out.push_back(fmt::format("MFU {:.1f}%", 100 * *r.mfu));
  if (r.step_ms) out.push_back(fmt::format("{:.1f} ms", *r.step_ms));
  out.push_back(fmt::format("lr {:.2e}", r.lr));
  out.push_back(fmt::format("norm {:.3f}", without_sign_of_nan(r.grad_norm)));
  if (r.loss_scale) out.push_back(fmt::format("scale {:g}", *r.loss_scale));
  return out;
}

int columns_of(int file_descriptor) {
  winsize size{};
  return ioctl(file_descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

}  // namespace

void TimeLeft::add(double step_ms) {
  if (newest_ms_.size() == kTimesKept) newest_ms_.pop_front();
  newest_ms_.push_back(step_ms);
}

std::optional<double> TimeLeft::seconds(std::int64_t steps) const {
  if (newest_ms_.empty() || steps <= 0) return std::nullopt;
  return 1e-3 * median({newest_ms_.begin(), newest_ms_.end()}) * static_cast<double>(steps);
}

std::string step_line(const StepRecord& record, std::int64_t total_steps, std::optional<double> seconds_left) {
  std::string line = fmt::format("step {}/{}", record.step, total_steps);
  for (const std::string& field : fields(record, seconds_left)) line += " | " + field;
  return line;
}

std::string progress_line(const StepRecord& record, std::int64_t total_steps, std::optional<double> seconds_left,
                          int width) {
  const std::int64_t percent = total_steps > 0 ? 100 * record.step / total_steps : 0;
  std::string line = fmt::format("step {}/{} {:3}%", record.step, total_steps, percent);
  for (const std::string& part : fields(record, seconds_left)) {
    if (line.size() + 3 + part.size() > static_cast<std::size_t>(std::max(width, 0))) break;
    line += " | " + part;
  }
  return line.substr(0, static_cast<std::size_t>(std::max(width, 0)));
}

Terminal find_terminal(int file_descriptor) {
  if (isatty(file_descriptor) == 0) return {};
  if (environment_variable("OMPI_COMM_WORLD_SIZE").empty()) return {true, columns_of(file_descriptor)};
  // Our own output is a pseudo-terminal that Open MPI made; what the user looks at is the output of the launcher, our
  // parent. Opened for writing without making it our controlling terminal.
  const std::string path = fmt::format("/proc/{}/fd/{}", getppid(), file_descriptor);
  const int launcher = open(path.c_str(), O_WRONLY | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
  if (launcher < 0) return {};
  const Terminal terminal{isatty(launcher) != 0, columns_of(launcher)};
  close(launcher);
  return terminal;
}

Progress::Progress(ProgressMode mode, std::FILE* out, std::int64_t total_steps) : out_(out), total_steps_(total_steps) {
  if (mode == ProgressMode::off) return;
  terminal_ = find_terminal(fileno(out));
  if (mode == ProgressMode::on) terminal_.present = true;
}

void Progress::update(const StepRecord& record, std::optional<double> seconds_left) {
  if (!on()) return;
  // One column stays free: some terminals wrap when the last one is written.
  const std::string line = progress_line(record, total_steps_, seconds_left, terminal_.width - 1);
  std::fputs(fmt::format("\r{}\x1b[K", line).c_str(), out_);
  std::fflush(out_);
  drawn_ = true;
}

void Progress::clear() {
  if (!drawn_) return;
  std::fputs("\r\x1b[K", out_);
  std::fflush(out_);
  drawn_ = false;
}

}  // namespace trainer
