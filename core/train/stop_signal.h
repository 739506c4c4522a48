// SIGUSR1, SIGTERM, SIGINT (Ctrl-C) and SIGHUP (a lost terminal) ask a run to finish its step, save and exit with code
// 75. A second one ends the process at once. One that was ignored when the process started stays so.
#pragma once
#include <atomic>

namespace trainer {

/// Installs the handlers (once a process) and returns the flag that the first signal sets. The flag is the one global
/// of this program: a signal handler can reach nothing else. SIGPIPE is ignored from then on: a console may end before
/// the run that writes to it.
const std::atomic<bool>& install_stop_signal();

/// SIGBUS, which a shard gives that is shortened under its mapping, says so on stderr and ends with exit code 3.
void install_bus_error_report();

}  // namespace trainer
