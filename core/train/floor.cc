#include "core/train/floor.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <utility>

#include "core/runtime/check.h"
#include "core/runtime/device.h"
#include "core/runtime/median.h"

namespace trainer {
namespace {

using Clock = std::chrono::steady_clock;

std::int64_t free_bytes(Device device) {
  return device.kind == DeviceKind::cuda ? device_properties(device).free_bytes
                                         : std::numeric_limits<std::int64_t>::max();
}

/// Copies of any size between two buffers that are far larger than a cache: each copy goes on where the last one ended,
/// so that none finds its data there.
class CopyTraffic {
 public:
  CopyTraffic(const Context& ctx, std::int64_t traffic)
      : half_(floor_buffer_bytes(traffic, free_bytes(ctx.device))),
        memory_(allocate(ctx.device, 2 * half_, "the copies of the floor")) {}

  /// Moves `bytes`: half of them read, half written.
  void move(const Context& ctx, std::int64_t bytes) {
    for (std::int64_t left = bytes / 2; left > 0;) {
      const std::int64_t count = std::min(left, half_ - at_);
      char* from = static_cast<char*>(memory_.get()) + at_;
      copy(ctx, from + half_, from, count);
      at_ = at_ + count == half_ ? 0 : at_ + count;
      left -= count;
    }
  }

 private:
  std::int64_t half_;
  std::int64_t at_ = 0;
  std::shared_ptr<void> memory_;
};

bool runs_as_it_is(OpKind kind) {
  return kind == OpKind::gemm || kind == OpKind::attention;
}

}  // namespace

std::int64_t floor_buffer_bytes(std::int64_t traffic, std::int64_t free_bytes) {
  constexpr std::int64_t kMiB = std::int64_t{1} << 20;
  constexpr std::int64_t kLargest = 512 * kMiB;
  constexpr std::int64_t kLeast = 64 * kMiB;    // two of them are more than twice the largest cache, 50 MiB on Hopper
  constexpr std::int64_t kToSpare = 64 * kMiB;  // for code that the driver still has to load
  const std::int64_t wanted = std::clamp<std::int64_t>(traffic, 1, kLargest);
  const std::int64_t room = (free_bytes - kToSpare) / 2 / kMiB * kMiB;
  if (room < std::min(wanted, kLeast))
    fail(ExitCode::memory, "{} MiB are free on the device, and the copies of the floor need {} MiB", free_bytes / kMiB,
         (2 * kLeast + kToSpare) / kMiB);
  return std::min(wanted, room);
}

FloorTime replay_floor(const Context& ctx, const std::vector<OpProfiler::Call>& calls, double seconds) {
  TRAINER_CHECK(!calls.empty(), "a floor of no ops");
  std::int64_t bytes = 0;
  for (const OpProfiler::Call& call : calls) bytes += call.cost.bytes;
  CopyTraffic traffic(ctx, bytes);
  Event start(ctx.device), end(ctx.device);
  std::vector<double> times;
  const auto begun = Clock::now();
  do {
    start.record(ctx);
    std::int64_t waiting = 0;  // bytes of neighbouring ops: one copy, as one fused op would be
    for (const OpProfiler::Call& call : calls) {
      if (!runs_as_it_is(call.cost.kind)) {
        waiting += call.cost.bytes;
        continue;
      }
      traffic.move(ctx, std::exchange(waiting, 0));
      call.run(ctx);
    }
    traffic.move(ctx, waiting);
    end.record(ctx);
    end.synchronize();
    times.push_back(end.milliseconds_since(start));
  } while (std::chrono::duration<double>(Clock::now() - begun).count() < seconds);
  const auto warm = times.begin() + std::ssize(times) / 2;
  return {.median_ms = median({warm, times.end()}),
          .min_ms = *std::min_element(times.begin(), times.end()),
          .replays = std::ssize(times)};
}

}  // namespace trainer
