#include "core/train/gemm_cache.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

namespace trainer {
namespace {

TEST(GemmCache, KeepsEveryLineOnce) {
  const std::string folder = ::testing::TempDir() + "/gemm_cache." + std::to_string(getpid());
  const std::string path = folder + "/deeper/gemm_choices.txt";
  EXPECT_EQ(read_gemm_cache(path), "");
  EXPECT_TRUE(add_to_gemm_cache(path, "card 1 shape a\n"));
  EXPECT_TRUE(add_to_gemm_cache(path, "card 1 shape a\ncard 1 shape b\n"));
  EXPECT_EQ(read_gemm_cache(path), "card 1 shape a\ncard 1 shape b\n");
  std::filesystem::remove_all(folder);
}

TEST(GemmCache, SaysWhenItCannotWrite) {
  EXPECT_FALSE(add_to_gemm_cache("", "card 1 shape a\n"));
  EXPECT_FALSE(add_to_gemm_cache("/dev/null/gemm_choices.txt", "card 1 shape a\n"));
}

}  // namespace
}  // namespace trainer
