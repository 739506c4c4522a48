#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "launch/bootstrap.h"
#include "parallel/self_communicator.h"

namespace trainer {
namespace {

namespace fs = std::filesystem;

// A launcher may start one rank (mpirun -np 1). On a card it must not talk through the host.
TEST(Bootstrap, OneRankOfALauncherTalksToItself) {
  const fs::path folder = fs::temp_directory_path() / ("trainer_bootstrap_test_" + std::to_string(getpid()));
  fs::create_directories(folder);
  setenv("TRAINER_RENDEZVOUS", folder.c_str(), 1);  // NOLINT(concurrency-mt-unsafe): before any thread starts
  setenv("TRAINER_WORLD_SIZE", "1", 1);             // NOLINT(concurrency-mt-unsafe)
  setenv("TRAINER_RANK", "0", 1);                   // NOLINT(concurrency-mt-unsafe)
  {
    int argc = 0;
    char** argv = nullptr;
    Bootstrap bootstrap(&argc, &argv);
    ASSERT_NE(bootstrap.job(), nullptr);
    EXPECT_EQ(bootstrap.size(), 1);
    for (const DeviceKind kind : {DeviceKind::cpu, DeviceKind::cuda}) {
      const auto world = bootstrap.world({kind, 0}, {});
      EXPECT_NE(dynamic_cast<SelfCommunicator*>(world.get()), nullptr);
      EXPECT_EQ(world->name(), "world");
    }
    bootstrap.finish();
  }
  fs::remove_all(folder);
}

}  // namespace
}  // namespace trainer
