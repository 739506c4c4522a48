// A file system without file locks. This program's flock stands in front of the C library's, HDF5's calls included.
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include "tests/checkpoint/support.h"
#include "tests/support/files.h"

namespace {
int flock_calls = 0;
}

extern "C" int flock(int /*fd*/, int /*operation*/) noexcept {
  ++flock_calls;
  errno = ENOLCK;
  return -1;
}

namespace trainer::checkpoint_test {
namespace {

TEST(FileLocks, ThatAreForcedAreNamedWithTheRemedy) {
  const TemporaryFolder folder;
  const pid_t pid = fork();  // HDF5 reads the variable once a process
  if (pid == 0) {
    setenv("HDF5_USE_FILE_LOCKING", "TRUE", 1);
    try {
      save_step(folder.path(), 1);
      _exit(1);
    } catch (const Error& error) {
      const std::string message = error.what();
      _exit(message.find("HDF5_USE_FILE_LOCKING=FALSE") != std::string::npos && flock_calls > 0 ? 0 : 2);
    }
  }
  int status = 0;
  ASSERT_EQ(waitpid(pid, &status, 0), pid);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_TRUE(names_in(folder.path()).empty());
}

TEST(FileLocks, AreNotNeeded) {
  const TemporaryFolder folder;
  flock_calls = 0;
  save_step(folder.path(), 1);
  const auto info = find_auto(folder.path());
  ASSERT_TRUE(info.has_value());
  expect_content(*info);
  EXPECT_EQ(flock_calls, 0);
}

}  // namespace
}  // namespace trainer::checkpoint_test
