// One log of a process: lines with UTC time to the console (rank 0 only) and to the rank's own file.
#pragma once
#include <memory>
#include <string>
#include <string_view>

namespace spdlog {
class logger;
}

namespace trainer {

class Log {
 public:
  /// Console lines only when `console`; until open_file() nothing is written elsewhere.
  explicit Log(bool console);
  ~Log();
  Log(Log&&) noexcept;
  Log& operator=(Log&&) noexcept;

  /// Also writes to `path` from now on (parent folders are made, lines are appended). Throws Error(other) when it
  /// cannot be opened.
  void open_file(const std::string& path);

  void debug(std::string_view message);
  void info(std::string_view message);
  void warn(std::string_view message);
  void error(std::string_view message);
  void flush();

 private:
  std::shared_ptr<spdlog::logger> logger_;
};

}  // namespace trainer
