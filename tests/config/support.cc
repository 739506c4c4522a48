#include "tests/config/support.h"

#include <sstream>

#include "tests/support/errors.h"
#include "tests/support/files.h"

namespace trainer {

std::string with_line(int number, const std::string& line) {
  std::istringstream lines(valid_text);
  std::string result, current;
  for (int i = 1; std::getline(lines, current); ++i) result += (i == number ? line : current) + "\n";
  return result;
}

Config valid_config() {
  return config_from_yaml(valid_text, "valid");
}

std::string config_file(const std::string& name, const std::string& text) {
  static const TemporaryFolder folder;
  write_file(folder / name, text);
  return folder / name;
}

std::string config_fault(const std::function<void()>& action) {
  return error_of(ExitCode::config, action);
}

}  // namespace trainer
