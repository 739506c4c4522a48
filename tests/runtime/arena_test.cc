#include "core/runtime/arena.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>

namespace trainer {
namespace {

constexpr MemoryClass kActivations = MemoryClass::activations, kWorkspace = MemoryClass::workspace;

std::int64_t planned(const Arena& arena, MemoryClass c) {
  return arena.plan()[static_cast<std::size_t>(c)];
}

/// The layout that is run twice.
struct Layout {
  explicit Layout(Arena& arena)
      : first(arena.take(kActivations, "first", 3, 5, Dtype::f32)),
        second(arena.take(kActivations, "second", 7, 2, Dtype::f64)),
        other(arena.take(kWorkspace, "other", 1, 300, Dtype::u8)) {}
  Tensor first, second, other;
};

TEST(Arena, MeasuresThenCommitsTheSameLayout) {
  Arena measuring;
  const Layout shapes(measuring);
  EXPECT_EQ(shapes.first.data, nullptr);
  EXPECT_EQ(shapes.second.rows, 7);
  EXPECT_EQ(planned(measuring, kActivations), 512);  // 60 and 112 bytes, each rounded up to 256
  EXPECT_EQ(planned(measuring, kWorkspace), 512);
  EXPECT_EQ(planned(measuring, MemoryClass::weights), 0);

  Arena arena(Device{}, measuring.plan());
  const Layout real(arena);
  EXPECT_EQ(arena.plan(), measuring.plan());
  for (const Tensor& t : {real.first, real.second, real.other})
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(t.data) % 256, 0u);
  EXPECT_EQ(static_cast<char*>(real.second.data) - static_cast<char*>(real.first.data), 256);
  EXPECT_TRUE(std::all_of(real.first.as<float>(), real.first.as<float>() + 15, [](float x) { return x == 0; }));
}

TEST(Arena, RefusesMoreThanThePlan) {
  Arena measuring;
  measuring.take(kActivations, "x", 1, 64, Dtype::f32);
  Arena arena(Device{}, measuring.plan());
  arena.take(kActivations, "x", 1, 64, Dtype::f32);
  EXPECT_THROW(arena.take(kActivations, "x", 1, 1, Dtype::f32), Error);
  EXPECT_THROW(arena.take(kWorkspace, "y", 1, 1, Dtype::f32), Error);
}

TEST(Arena, NamesTheLargestBuffers) {
  Arena arena;
  for (int layer = 0; layer < 3; ++layer) arena.take(kActivations, "qkv", 1, 100, Dtype::f32);
  arena.take(kActivations, "logits", 1, 250, Dtype::f32);
  arena.take(kWorkspace, "qkv", 1, 10, Dtype::f32);
  const auto buffers = arena.largest();
  ASSERT_EQ(buffers.size(), 3u);
  EXPECT_EQ(buffers[0].name, "qkv");
  EXPECT_EQ(buffers[0].bytes, 1200);
  EXPECT_EQ(buffers[1].name, "logits");
  EXPECT_EQ(buffers[1].bytes, 1000);
  EXPECT_EQ(buffers[2].memory_class, kWorkspace);
}

TEST(Arena, MemoryThatCannotBeHadIsAMemoryErrorThatNamesTheClass) {
  MemoryPlan plan{};
  plan[static_cast<std::size_t>(MemoryClass::logits)] = std::int64_t{1} << 60;
  try {
    Arena arena(Device{}, plan);
    FAIL() << "got an exabyte";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::memory);
    EXPECT_NE(std::string(error.what()).find("logits"), std::string::npos);
  }
}

}  // namespace
}  // namespace trainer
