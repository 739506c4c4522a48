#include "tests/config/support.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "core/runtime/check.h"

namespace trainer {
namespace {

/// A folder of this process that goes with it.
class TemporaryFolder {
 public:
  TemporaryFolder() : path_(std::filesystem::path(testing::TempDir()) / fmt::format("trainer_config_{}", getpid())) {
    std::filesystem::create_directories(path_);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace

std::string with_line(int number, const std::string& line) {
  std::istringstream lines(valid_text);
  std::string result, current;
  for (int i = 1; std::getline(lines, current); ++i) result += (i == number ? line : current) + "\n";
  return result;
}

Config valid_config() {
  return config_from_yaml(valid_text, "valid");
}

std::string write_file(const std::string& name, const std::string& text) {
  static const TemporaryFolder folder;
  std::string path = folder.path() / name;
  std::ofstream(path, std::ios::binary) << text;
  return path;
}

std::string config_fault(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& e) {
    EXPECT_EQ(static_cast<int>(e.code()), 2) << e.what();
    return e.what();
  }
  ADD_FAILURE() << "no error was thrown";
  return {};
}

}  // namespace trainer
