#include "core/train/run_folder.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <string>

#include "core/runtime/check.h"

namespace trainer {
namespace {

namespace fs = std::filesystem;

class RunFolderPlaces : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = testing::TempDir() + "run-folder-places-" + std::to_string(getpid());
    fs::create_directories(folder_ + "/logs");
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string operator/(const std::string& name) const { return folder_ + "/" + name; }

  /// What is said with `name` as `make` leaves it, "" when it serves.
  std::string said(const std::string& name, const std::function<void(const std::string& path)>& make) const {
    const std::string path = *this / name;
    make(path);
    std::string text;
    try {
      check_run_folder(folder_);
      check_place_of_file(log_path(folder_, 3));
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::config);
      text = error.what();
      EXPECT_NE(text.find("train.output_dir: '" + path + "' is "), std::string::npos) << text;
    }
    fs::remove_all(path);
    return text;
  }

 private:
  std::string folder_;
};

void make_file(const std::string& path) {
  std::ofstream(path) << "text";
}
void make_pipe(const std::string& path) {
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
}
auto link_to(const std::string& target) {
  return [=](const std::string& path) { fs::create_symlink(target, path); };
}

TEST_F(RunFolderPlaces, AreThoseOfFilesAndFolders) {
  make_file(*this / "a file");
  fs::create_directory(*this / "a folder");
  for (const char* name : {"metrics.jsonl", "metrics.jsonl.tmp", "config.resolved.yaml", "config.resolved.yaml.tmp",
                           ".lock", "logs/rank-0003.log"}) {
    EXPECT_EQ(said(name, make_file), "");
    EXPECT_EQ(said(name, link_to(*this / "a file")), "");
    EXPECT_EQ(said(name, link_to("not there yet")), "");
    EXPECT_NE(said(name, make_pipe).find("is a pipe; right would be a file, or nothing"), std::string::npos);
    EXPECT_NE(said(name, link_to("/dev/full")).find("is a link to '/dev/full', which is a device"), std::string::npos);
    EXPECT_NE(said(name, [](const std::string& path) { fs::create_directory(path); }).find("is a folder"),
              std::string::npos);
    EXPECT_NE(said(name, link_to(*this / name)).find("which is out of reach"), std::string::npos) << "round and round";
  }
  fs::remove(*this / "logs");
  for (const char* name : {"tb", "logs"}) {
    EXPECT_EQ(said(name, link_to(*this / "a folder")), "");
    EXPECT_NE(said(name, make_file).find("is a file; right would be a folder, or nothing"), std::string::npos);
    EXPECT_NE(said(name, link_to("/dev/null")).find("which is a device; right would be a folder"), std::string::npos);
    EXPECT_NE(said(name, link_to("nowhere")).find("is a link to 'nowhere', which is missing"), std::string::npos);
  }
  EXPECT_NO_THROW(check_run_folder(*this / "no folder"));
}

}  // namespace
}  // namespace trainer
