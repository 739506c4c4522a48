#include "core/train/stop_signal.h"

#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <string_view>

#include "core/runtime/check.h"

namespace trainer {
namespace {

std::atomic<bool> stop_requested{false};
static_assert(std::atomic<bool>::is_always_lock_free, "the handler may touch lock-free atomics only");

void on_signal(int) {
  if (stop_requested.exchange(true)) std::_Exit(static_cast<int>(ExitCode::other));
}

/// A page of a mapped file that is not there any more, or cannot be read: async-signal-safe calls only.
void on_bus_error(int) {
  constexpr std::string_view text =
      "trainer: SIGBUS: a mapped data file was shortened while it was read, or its disk (or /dev/shm) failed; "
      "right would be to leave shards alone, and to replace one by a rename (trainer data check)\n";
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, text.data(), text.size());
  _exit(static_cast<int>(ExitCode::data));
}

}  // namespace

void install_bus_error_report() {
  std::signal(SIGBUS, on_bus_error);
}

const std::atomic<bool>& install_stop_signal() {
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  for (const int signal : {SIGUSR1, SIGTERM, SIGINT, SIGHUP}) {
    struct sigaction before {};
    if (sigaction(signal, nullptr, &before) == 0 && before.sa_handler == SIG_IGN) continue;  // nohup, or a shell's `&`
    if (sigaction(signal, &action, nullptr) != 0)
      fail(ExitCode::other, "cannot install a handler for signal {}", signal);
  }
  std::signal(SIGPIPE, SIG_IGN);  // `trainer ... | tee log`, and tee ends
  return stop_requested;
}

}  // namespace trainer
