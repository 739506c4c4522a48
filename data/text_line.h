// A text file line by line, and complaints that say where.
#pragma once
#include <cstdint>
#include <fstream>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include "core/runtime/check.h"

namespace trainer {

struct TextLine {
  const std::string& path;
  std::int64_t number;    // from 1
  std::string_view text;  // without the line end

  template <class... Args>
  [[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) const {
    fail(ExitCode::data, "{}:{}: {}", path, number, fmt::format(format, std::forward<Args>(args)...));
  }
  /// Throws Error(data) that names the column, in bytes from 1. A zero byte is not text either.
  void check_utf8() const;
};

/// Throws Error(data) when it cannot be opened.
std::ifstream open_text(const std::string& path);

/// Throws Error(data) when the file cannot be opened or read. A line is held in memory.
void for_each_line(const std::string& path, const std::function<void(const TextLine&)>& use);

}  // namespace trainer
