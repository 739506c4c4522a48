// Devices, memory, streams and events.
#include <array>
#include <cstring>

#include "core/runtime/check.h"
#include "tests/gpu/twin.h"

namespace trainer::testing {
namespace {

TEST(Device, HasProperties) {
  TRAINER_REQUIRE_GPU();
  const DeviceProperties p = device_properties({DeviceKind::cuda, 0});
  EXPECT_FALSE(p.name.empty());
  EXPECT_GE(p.sm, 70);
  EXPECT_GT(p.sm_count, 0);
  EXPECT_GT(p.total_bytes, p.free_bytes);
  EXPECT_EQ(p.pci_bus_id.substr(0, 4), "0000");
}

TEST(Device, AnUnknownCardIsAnErrorOfTheConfiguration) {
  TRAINER_REQUIRE_GPU();
  try {
    device_properties({DeviceKind::cuda, 1000});
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::config);
  }
}

TEST(Device, TooMuchMemoryIsRefusedWithTheNumbers) {
  TRAINER_REQUIRE_GPU();
  try {
    allocate({DeviceKind::cuda, 0}, std::int64_t{1} << 45, "activations");
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::memory);
    EXPECT_NE(std::string(error.what()).find("35184372088832 bytes"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("activations"), std::string::npos);
  }
  EXPECT_NE(allocate({DeviceKind::cuda, 0}, 1024, "the next one"), nullptr);  // the error does not stick
}

TEST(Device, MemoryIsZeroAndCopiesArrive) {
  TRAINER_REQUIRE_GPU();
  const Context& ctx = gpu_context();
  constexpr std::int64_t kBytes = 1000;
  const auto device = allocate(ctx.device, kBytes, "a test"), other = allocate(ctx.device, kBytes, "a test");
  const auto pinned = allocate_pinned(ctx.device, kBytes, "a test");
  auto* host = static_cast<unsigned char*>(pinned.get());
  std::memset(host, 1, kBytes);
  copy_to_host(ctx, host, device.get(), kBytes);
  synchronize(ctx);
  for (int i = 0; i < kBytes; ++i) ASSERT_EQ(host[i], 0);
  for (int i = 0; i < kBytes; ++i) host[i] = static_cast<unsigned char>(i * 7);
  copy_to_device(ctx, device.get(), host, kBytes);
  copy(ctx, other.get(), device.get(), kBytes);
  fill_bytes(ctx, device.get(), 9, kBytes);
  std::array<unsigned char, kBytes> copied{}, filled{};
  copy_to_host(ctx, copied.data(), other.get(), kBytes);
  copy_to_host(ctx, filled.data(), device.get(), kBytes);
  synchronize(ctx);
  for (int i = 0; i < kBytes; ++i) {
    ASSERT_EQ(copied[static_cast<std::size_t>(i)], static_cast<unsigned char>(i * 7));
    ASSERT_EQ(filled[static_cast<std::size_t>(i)], 9);
  }
}

TEST(Device, AnEventOrdersTwoStreams) {
  TRAINER_REQUIRE_GPU();
  const Context& first = gpu_context();
  const Stream stream(first.device);
  Context second = first;
  second.stream = stream.get();
  constexpr std::int64_t kBytes = std::int64_t{1} << 28;
  const auto from = allocate(first.device, kBytes, "a test"), to = allocate(first.device, kBytes, "a test");
  Event start(first.device), done(first.device);
  start.record(first);
  fill_bytes(first, from.get(), 3, kBytes);
  done.record(first);
  done.wait(second);
  copy(second, to.get(), from.get(), kBytes);
  unsigned char last = 0;
  copy_to_host(second, &last, static_cast<unsigned char*>(to.get()) + kBytes - 1, 1);
  synchronize(second);
  EXPECT_EQ(last, 3);
  done.synchronize();
  EXPECT_GT(done.milliseconds_since(start), 0.0);
}

TEST(Device, TheClockIsReadWhenTheStreamComesToIt) {
  TRAINER_REQUIRE_GPU();
  const Context& ctx = gpu_context();
  constexpr std::int64_t kBytes = std::int64_t{1} << 30;
  const auto memory = allocate(ctx.device, kBytes, "a test");
  double start = 0, end = 0;
  const double before = clock_seconds();
  read_clock(ctx, &start);
  for (int i = 0; i < 20; ++i) fill_bytes(ctx, memory.get(), i, kBytes);
  read_clock(ctx, &end);
  synchronize(ctx);
  EXPECT_LT(before, start);
  EXPECT_LT(end, clock_seconds());
  EXPECT_GT(end - start, 0.001) << "20 GiB at 20 TB/s";
}

}  // namespace
}  // namespace trainer::testing
