#include "core/runtime/log.h"

#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <cstdio>
#include <exception>
#include <utility>

#include "core/runtime/check.h"

namespace trainer {
namespace {

constexpr const char* kPattern = "%Y-%m-%dT%H:%M:%SZ %^%l%$ %v";

}  // namespace

Log::Log(bool console) : logger_(std::make_shared<spdlog::logger>("trainer")) {
  if (console) logger_->sinks().push_back(std::make_shared<spdlog::sinks::stdout_sink_mt>());
  logger_->set_pattern(kPattern, spdlog::pattern_time_type::utc);
  logger_->flush_on(spdlog::level::info);  // the last lines before a crash are those that are read
}

Log::~Log() = default;
Log::Log(Log&&) noexcept = default;
Log& Log::operator=(Log&&) noexcept = default;

void Log::open_file(const std::string& path) {
  try {
    logger_->sinks().push_back(std::make_shared<spdlog::sinks::basic_file_sink_mt>(path));
  } catch (const std::exception& e) {
    fail(ExitCode::other, "cannot open the log file '{}': {}", path, e.what());
  }
  logger_->set_pattern(kPattern, spdlog::pattern_time_type::utc);
  // Lines that a full disk refuses end no run, and are no reason to fill the console: the first is told.
  logger_->set_error_handler([told = false](const std::string& problem) mutable {
    if (std::exchange(told, true)) return;
    const std::string text =
        fmt::format("trainer: cannot write to the log file: {}. What it does not take is lost\n", problem);
    std::fputs(text.c_str(), stderr);
  });
}

void Log::debug(std::string_view message) {
  logger_->debug("{}", message);
}
void Log::info(std::string_view message) {
  logger_->info("{}", message);
}
void Log::warn(std::string_view message) {
  logger_->warn("{}", message);
}
void Log::error(std::string_view message) {
  logger_->error("{}", message);
}
void Log::flush() {
  logger_->flush();
}

}  // namespace trainer
