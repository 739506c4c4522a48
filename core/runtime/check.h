// Errors: everything that goes wrong is thrown as an Error that knows the exit code of the process.
#pragma once
#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace trainer {

/// Exit codes of the `trainer` process. Documented in docs/operations.md; scripts depend on them, so they never change.
enum class ExitCode : int {
  ok = 0,
  other = 1,
  config = 2,         // the configuration or the command line is wrong
  data = 3,           // a data file is missing, damaged, or does not fit the model
  checkpoint = 4,     // a checkpoint cannot be written or read
  memory = 5,         // the job does not fit in memory
  diverged = 6,       // the loss scale is at its floor, or too many steps in a row had non-finite gradients
  communication = 7,  // a rank died, hangs, or disagrees about a collective
  stopped = 75,       // stopped by a signal after saving: start me again (EX_TEMPFAIL)
};

/// The only exception type that this project throws on purpose. `what()` says what happened, where, the value, and
/// what would be right; rank, host and step are added where the exception is reported (launch/main.cc).
class Error : public std::runtime_error {
 public:
  Error(ExitCode code, const std::string& what) : std::runtime_error(what), code_(code) {}
  ExitCode code() const { return code_; }

 private:
  ExitCode code_;
};

/// Throws Error with a formatted message.
template <class... Args>
[[noreturn]] void fail(ExitCode code, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(code, fmt::format(format, std::forward<Args>(args)...));
}

namespace detail {
[[noreturn]] void check_failed(const char* file, int line, const char* condition, const std::string& message);
}

}  // namespace trainer

/// An invariant of our own code: throws Error(ExitCode::other) naming the place. `TRAINER_CHECK(a == b, "sizes {} {}",
/// a, b)`. What a user can cause is reported with fail() and its own exit code instead.
#define TRAINER_CHECK(condition, ...)                                                                            \
  do {                                                                                                           \
    if (!(condition)) ::trainer::detail::check_failed(__FILE__, __LINE__, #condition, fmt::format(__VA_ARGS__)); \
  } while (false)
