#include "core/runtime/phase_times.h"

#include <gtest/gtest.h>

#include <thread>

namespace trainer {
namespace {

using namespace std::chrono_literals;

TEST(PhaseTimes, CountFromTheStartOfTheProcess) {
  const auto before = std::chrono::steady_clock::now();
  std::this_thread::sleep_for(100ms);  // as work before anybody asks
  PhaseTimes times;
  EXPECT_GE(times.seconds(), 0.09);  // the kernel counts in 10 ms
  EXPECT_LT(times.seconds(), std::chrono::duration<double>(std::chrono::steady_clock::now() - before).count() + 30);
}

TEST(PhaseTimes, FollowEachOtherInOrder) {
  PhaseTimes times;
  EXPECT_EQ(times.text(), "");
  times.end("program");
  std::this_thread::sleep_for(50ms);
  times.end("memory");
  const std::string text = times.text();
  double program = 0, memory = 0;
  ASSERT_EQ(std::sscanf(text.c_str(), "program %lf s, memory %lf s", &program, &memory), 2) << text;
  EXPECT_GE(memory, 0.04);
  EXPECT_LE(program + memory, times.seconds() + 0.02);
}

}  // namespace
}  // namespace trainer
