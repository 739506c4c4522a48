#include "core/train/reporting/progress.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "core/runtime/check.h"
#include "core/train/reporting/tables.h"

namespace trainer {
namespace {

std::vector<std::string> fields(const StepRecord& r) {
  std::vector<std::string> out{fmt::format("loss {:.4f}", r.loss)};
  if (r.eval_loss) out.push_back(fmt::format("eval {:.4f}", *r.eval_loss));
  if (r.tokens_per_second) out.push_back(format_count(*r.tokens_per_second) + " tok/s");
  if (r.mfu) out.push_back(fmt::format("MFU {:.1f}%", 100 * *r.mfu));
  if (r.step_ms) out.push_back(fmt::format("{:.1f} ms", *r.step_ms));
  out.push_back(fmt::format("lr {:.2e}", r.lr));
  out.push_back(fmt::format("norm {:.3f}", r.grad_norm));
  if (r.loss_scale) out.push_back(fmt::format("scale {:g}", *r.loss_scale));
  if (r.skipped) out.insert(out.begin() + 1, "skipped");
  return out;
}

int columns_of(int file_descriptor) {
  winsize size{};
  return ioctl(file_descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

}  // namespace

std::string step_line(const StepRecord& record, std::int64_t total_steps) {
  std::string line = fmt::format("step {}/{}", record.step, total_steps);
  for (const std::string& field : fields(record)) line += " | " + field;
  return line;
}

std::string progress_line(const StepRecord& record, std::int64_t total_steps, double eta_seconds, int width) {
  const std::int64_t percent = total_steps > 0 ? 100 * record.step / total_steps : 0;
  std::string line = fmt::format("step {}/{} {:3}%", record.step, total_steps, percent);
  std::vector<std::string> parts = fields(record);
  if (eta_seconds >= 0) parts.insert(parts.begin() + 1, "ETA " + format_duration(eta_seconds));
  for (const std::string& part : parts) {
    if (line.size() + 3 + part.size() > static_cast<std::size_t>(std::max(width, 0))) break;
    line += " | " + part;
  }
  return line.substr(0, static_cast<std::size_t>(std::max(width, 0)));
}

Terminal find_terminal(int file_descriptor) {
  if (isatty(file_descriptor) == 0) return {};
  if (std::getenv("OMPI_COMM_WORLD_SIZE") == nullptr) return {true, columns_of(file_descriptor)};
  // Our own output is a pseudo-terminal that Open MPI made; what the user looks at is the output of the launcher, our
  // parent. Opened for writing without making it our controlling terminal.
  const std::string path = fmt::format("/proc/{}/fd/{}", getppid(), file_descriptor);
  const int launcher = open(path.c_str(), O_WRONLY | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
  if (launcher < 0) return {};
  const Terminal terminal{isatty(launcher) != 0, columns_of(launcher)};
  close(launcher);
  return terminal;
}

Progress::Progress(ProgressMode mode, std::FILE* out, std::int64_t completed_steps, std::int64_t total_steps,
                   double now)
    : out_(out), first_step_(completed_steps), total_steps_(total_steps), start_(now) {
  if (mode == ProgressMode::off) return;
  terminal_ = find_terminal(fileno(out));
  if (mode == ProgressMode::on) terminal_.present = true;
}

void Progress::update(const StepRecord& record, double now) {
  if (!on()) return;
  const std::int64_t done = record.step - first_step_;
  const double eta =
      done > 0 ? (now - start_) / static_cast<double>(done) * static_cast<double>(total_steps_ - record.step) : -1;
  // One column stays free: some terminals wrap when the last one is written.
  fmt::print(out_, "\r{}\x1b[K", progress_line(record, total_steps_, eta, terminal_.width - 1));
  std::fflush(out_);
  drawn_ = true;
}

void Progress::clear() {
  if (!drawn_) return;
  fmt::print(out_, "\r\x1b[K");
  std::fflush(out_);
  drawn_ = false;
}

}  // namespace trainer
