// Disks that are full or read-only, folders that others look into, and many saves in a row.
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <thread>

#include "core/checkpoint/hdf5_id.h"
#include "core/checkpoint/save_folder.h"
#include "tests/checkpoint/support.h"
#include "tests/support/errors.h"
#include "tests/support/files.h"

namespace trainer::checkpoint_test {
namespace {

namespace fs = std::filesystem;

/// A file system in memory of `megabytes`, where this process may mount one.
class SmallDisk {
 public:
  explicit SmallDisk(int megabytes)
      : mounted_(mount("tmpfs", folder_.path().c_str(), "tmpfs", 0,
                       ("size=" + std::to_string(megabytes) + "m").c_str()) == 0) {}
  ~SmallDisk() {
    if (mounted_) umount(folder_.path().c_str());
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;
  bool mounted() const { return mounted_; }
  bool remount(unsigned long flags) const { return mount("", folder_.path().c_str(), "", MS_REMOUNT | flags, "") == 0; }
  const std::string& path() const { return folder_.path(); }

 private:
  TemporaryFolder folder_;
  bool mounted_;
};

/// Four large tensors behind many small ones, whose HDF5 structures are written when the file is closed.
Model of_bytes(std::int64_t bytes) {
  Model model;
  for (int i = 0; i < 100; ++i) model.tensors.push_back({"small." + std::to_string(i), {1, 4, 1}, Dtype::f32, {}});
  for (int i = 0; i < 4; ++i)
    model.tensors.push_back({"tensor." + std::to_string(i), {2, bytes / 1024, 64}, Dtype::f32, {}});
  model.clear();
  model.fill(1);
  return model;
}

SaveRequest request_of(const std::string& folder, std::int64_t step, Model& model) {
  SaveRequest request = request_for(folder, step, model.whole());
  request.max_piece_bytes = 1 << 18;
  return request;
}

void expect_loads(const std::string& folder, std::int64_t step, const Model& expected) {
  SelfCommunicator world("world");
  std::vector<std::string> warnings;
  const auto info = find_auto(folder, &warnings);
  ASSERT_TRUE(info.has_value());
  EXPECT_TRUE(warnings.empty());
  EXPECT_EQ(info->manifest.step, step);
  Model loaded = expected;
  loaded.clear();
  load_pieces(*info, loaded.whole(), world);
  EXPECT_TRUE(loaded.same_bits(expected));
}

const std::vector<std::string> kOnlyStep1{"latest", "step_00000001"};

TEST(FullDisk, IsRefusedBeforeAnythingIsWritten) {
  const SmallDisk disk(8);
  if (!disk.mounted()) GTEST_SKIP() << "this process may not mount a tmpfs";
  SelfCommunicator world("world");
  Model model = of_bytes(5 << 20);
  save_checkpoint(request_of(disk.path(), 1, model), world, FaultPlan());
  model.reads = 0;
  const SaveRequest request = request_of(disk.path(), 2, model);
  const std::string message = error_of(ExitCode::checkpoint, [&] { save_checkpoint(request, world, FaultPlan()); });
  EXPECT_EQ(model.reads, 0);
  for (const std::string& part : {disk.path(), std::to_string(estimate_bytes(request.pieces)),
                                  std::to_string(free_bytes(disk.path())), std::string("not enough space")})
    EXPECT_TRUE(mentions(message, {part}));
  EXPECT_EQ(names_in(disk.path()), kOnlyStep1);
  expect_loads(disk.path(), 1, model);
}

TEST(FullDisk, ThatFillsWhileSaving) {
  const SmallDisk disk(16);
  if (!disk.mounted()) GTEST_SKIP() << "this process may not mount a tmpfs";
  SelfCommunicator world("world");
  Model model = of_bytes(5 << 20);
  save_checkpoint(request_of(disk.path(), 1, model), world, FaultPlan());
  const std::size_t open_files = names_in("/proc/self/fd").size();
  for (const std::int64_t read : {1, 2, 50, 101, 102, 107, 115, 119, 120}) {
    // Somebody else takes all the room when this much has been read.
    model.reads = 0;
    model.on_read = [&] {
      if (model.reads != read) return;
      std::ofstream(disk.path() + "/filler") << std::string(16 << 20, 'x');
    };
    const std::string message =
        error_of(ExitCode::checkpoint, [&] { save_checkpoint(request_of(disk.path(), 2, model), world, FaultPlan()); });
    EXPECT_TRUE(mentions(message, {disk.path()}));
    EXPECT_TRUE(mentions(message, {"No space left on device"}));
    EXPECT_TRUE(mentions(message, {"bytes, "}));
    EXPECT_EQ(names_in(disk.path()), (std::vector<std::string>{"filler", "latest", "step_00000001"}));
    expect_loads(disk.path(), 1, model);
    fs::remove(disk.path() + "/filler");
    // Nothing that was deleted is still held open.
    EXPECT_EQ(names_in("/proc/self/fd").size(), open_files);
    EXPECT_GT(free_bytes(disk.path()), 10 << 20) << "read " << read;
  }
  model.on_read = nullptr;
  save_checkpoint(request_of(disk.path(), 2, model), world, FaultPlan());
  expect_loads(disk.path(), 2, model);
}

TEST(FullDisk, AsALimitOnTheSizeOfFiles) {
  const TemporaryFolder folder;
  Model model = of_bytes(5 << 20);
  SelfCommunicator world("world");
  save_checkpoint(request_of(folder.path(), 1, model), world, FaultPlan());
  const pid_t pid = fork();
  if (pid == 0) {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{1 << 20, 1 << 20};
    setrlimit(RLIMIT_FSIZE, &limit);
    try {
      save_checkpoint(request_of(folder.path(), 2, model), world, FaultPlan());
      _exit(1);
    } catch (const Error& error) {
      const std::string message = error.what();
      const bool told =
          message.find("File too large") != std::string::npos && message.find("bytes, ") != std::string::npos;
      _exit(told && error.code() == ExitCode::checkpoint ? 0 : 2);
    }
  }
  int status = 0;
  ASSERT_EQ(waitpid(pid, &status, 0), pid);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_EQ(names_in(folder.path()), kOnlyStep1);
  save_checkpoint(request_of(folder.path(), 2, model), world, FaultPlan());
  expect_loads(folder.path(), 2, model);
}

TEST(ReadOnlyFolder, FailsTheSaveAndServesTheLoad) {
  const SmallDisk disk(16);
  if (!disk.mounted()) GTEST_SKIP() << "this process may not mount a tmpfs";
  SelfCommunicator world("world");
  Model model = of_bytes(1 << 20);
  save_checkpoint(request_of(disk.path(), 1, model), world, FaultPlan());
  ASSERT_TRUE(disk.remount(MS_RDONLY));
  const std::string message =
      error_of(ExitCode::checkpoint, [&] { save_checkpoint(request_of(disk.path(), 2, model), world, FaultPlan()); });
  EXPECT_TRUE(mentions(message, {disk.path()}));
  EXPECT_TRUE(mentions(message, {"Read-only file system"}));
  expect_loads(disk.path(), 1, model);
  ASSERT_TRUE(disk.remount(0));
  save_checkpoint(request_of(disk.path(), 2, model), world, FaultPlan());
  expect_loads(disk.path(), 2, model);
}

TEST(Folder, PathThatIsAFile) {
  const TemporaryFolder folder;
  write_file(folder / "file", "text");
  EXPECT_TRUE(mentions(error_of(ExitCode::checkpoint, [&] { save_step(folder / "file", 1); }), {folder / "file"}));
  EXPECT_EQ(read_file(folder / "file"), "text");
}

TEST(Folder, AReaderDoesNotBlockASave) {
  const TemporaryFolder folder;
  save_step(folder.path(), 1);
  // Opened by an HDF5 program that does take locks, and held.
  const checkpoint::Hdf5Id reader(H5Fopen((folder / "step_00000001/rank-0000.h5").c_str(), H5F_ACC_RDONLY, H5P_DEFAULT),
                                  H5Fclose, "reader");
  save_step(folder.path(), 1);
  EXPECT_EQ(find_auto(folder.path())->manifest.step, 1);
  save_step(folder.path(), 2, 1);
  EXPECT_EQ(names_in(folder.path()), (std::vector<std::string>{"latest", "step_00000002"}));
}

TEST(Folder, ManySavesWithRandomDelaysUnderARelativePath) {
  const TemporaryFolder folder;
  const fs::path before = fs::current_path();
  fs::current_path(folder.path());
  SelfCommunicator world("world");
  Random random(23);
  Model model = Model::small();
  model.on_read = [&] { std::this_thread::sleep_for(std::chrono::microseconds(random.between(0, 500))); };
  for (std::int64_t step = 1; step <= 200; ++step) {
    model.fill(static_cast<std::uint64_t>(step));
    SaveRequest request = request_for("run/checkpoints", step, model.whole());
    request.keep_last = 3;
    EXPECT_TRUE(save_checkpoint(request, world, FaultPlan()).warnings.empty());
    const auto info = find_auto("run/checkpoints");
    ASSERT_TRUE(info.has_value());
    ASSERT_EQ(info->manifest.step, step);
    expect_content(*info);
  }
  fs::current_path(before);
  EXPECT_EQ(names_in(folder / "run/checkpoints"),
            (std::vector<std::string>{"latest", "step_00000198", "step_00000199", "step_00000200"}));
}

TEST(Folder, SavingAStepAgainReplacesIt) {
  const TemporaryFolder folder;
  SelfCommunicator world("world");
  Model model = Model::small();
  for (const std::uint64_t seed : {5u, 6u}) {
    model.fill(seed);
    save_checkpoint(request_for(folder.path(), 3, model.whole()), world, FaultPlan());
  }
  EXPECT_EQ(names_in(folder.path()), (std::vector<std::string>{"latest", "step_00000003"}));
  expect_loads(folder.path(), 3, model);
}

TEST(Folder, ACheckpointThatLostItsNameIsFoundAndNamedAgain) {
  // What a kill leaves between the two renames of a replacement, on a file system without exchange.
  const TemporaryFolder folder;
  save_step(folder.path(), 1);
  save_step(folder.path(), 2);
  fs::rename(folder / "step_00000002", folder / ".step_00000002.old-0123456789abcdef");
  const auto info = find_auto(folder.path());
  ASSERT_TRUE(info.has_value());
  EXPECT_EQ(info->manifest.step, 2);
  expect_content(*info);
  save_step(folder.path(), 3);
  EXPECT_EQ(names_in(folder.path()),
            (std::vector<std::string>{"latest", "step_00000001", "step_00000002", "step_00000003"}));
}

TEST(Folder, OnlyOurOwnLeftoversAreRemoved) {
  const TemporaryFolder folder;
  for (const char* ours : {".step_00000007.tmp-0123456789abcdef", ".step_123456789.tmp-ffffffffffffffff"}) {
    fs::create_directory(folder / ours);
    write_file(folder / (std::string(ours) + "/rank-0000.h5"), "half");
  }
  write_file(folder / ".latest.tmp-0123456789abcdef", "step_");
  const std::vector<std::string> others{".hidden", ".step_00000007.tmp-mine", ".step_7.tmp-0123456789abcdef",
                                        "best",    "step_00000009.backup",    "step_12"};
  for (const std::string& name : others) fs::create_directory(folder / name);
  save_step(folder.path(), 1, 1);
  auto expected = others;
  expected.insert(expected.end(), {"latest", "step_00000001"});
  std::sort(expected.begin(), expected.end());
  EXPECT_EQ(names_in(folder.path()), expected);
}

TEST(KeepLast, CountsFromTheNewestAndSparesWhatItCannotRead) {
  const TemporaryFolder folder;
  for (const std::int64_t step : {10, 20, 30}) save_step(folder.path(), step);
  write_file(folder / "step_00000020/manifest.json", "garbage");
  save_step(folder.path(), 5);  // back to an older step: it is the newest now
  SelfCommunicator world("world");
  Model model = Model::small();
  model.fill(6);
  SaveRequest request = request_for(folder.path(), 6, model.whole());
  request.keep_last = 2;
  const SaveResult result = save_checkpoint(request, world, FaultPlan());
  ASSERT_EQ(result.warnings.size(), 1u);
  EXPECT_TRUE(mentions(result.warnings[0], {"step_00000020"}));
  EXPECT_EQ(names_in(folder.path()),
            (std::vector<std::string>{"latest", "step_00000005", "step_00000006", "step_00000020"}));
}

TEST(KeepLast, NewestGoodOneOutlivesThoseBehindIt) {
  const TemporaryFolder folder;
  SelfCommunicator world("world");
  Model model = Model::small();
  const auto save = [&](std::int64_t step, const std::string& state) {
    SaveRequest request = request_for(folder.path(), step, model.whole());
    request.keep_last = 2;
    request.state_json = state;
    request.is_good = [](const std::string& json) { return json == "\"good\""; };
    EXPECT_TRUE(save_checkpoint(request, world, FaultPlan()).warnings.empty());
    return names_in(folder.path());
  };
  const std::string good = "\"good\"", bad = "\"bad\"";
  save(1, good);
  save(2, good);
  EXPECT_EQ(save(3, bad), (std::vector<std::string>{"latest", "step_00000002", "step_00000003"}));
  save(4, bad);
  EXPECT_EQ(save(5, bad), (std::vector<std::string>{"latest", "step_00000002", "step_00000004", "step_00000005"}));
  EXPECT_EQ(save(6, good), (std::vector<std::string>{"latest", "step_00000005", "step_00000006"}));
}

TEST(KeepLast, DoesNotRemoveWhenTheSaveFails) {
  const TemporaryFolder folder;
  save_step(folder.path(), 1);
  save_step(folder.path(), 2);
  SelfCommunicator world("world");
  Model model = Model::small();
  SaveRequest request = request_for(folder.path(), 3, model.whole());
  request.keep_last = 1;
  error_of(ExitCode::other,
           [&] { save_checkpoint(request, world, FaultPlan::parse("site=save.publish,action=throw")); });
  EXPECT_EQ(names_in(folder.path()), (std::vector<std::string>{"latest", "step_00000001", "step_00000002"}));
  EXPECT_EQ(read_file(folder / "latest"), "step_00000002\n");
}

TEST(FreeBytes, OfAFolderThatDoesNotExistYet) {
  const TemporaryFolder folder;
  EXPECT_GT(free_bytes(folder / "a/b/c"), 0);
  EXPECT_GT(free_bytes("relative/not/there"), 0);
}

}  // namespace
}  // namespace trainer::checkpoint_test
