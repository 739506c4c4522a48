#include "core/train/clock_monitor.h"

#include <dlfcn.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

namespace trainer {
namespace {

constexpr auto kInterval = std::chrono::milliseconds(50);

/// The few functions of NVML that are asked, found at run time: a machine without a driver has no such library.
struct Nvml {
  using Handle = void*;
  int (*init)() = nullptr;
  int (*find)(const char* pci_bus_id, Handle* device) = nullptr;
  int (*clock)(Handle device, int type, unsigned* mhz) = nullptr;
  int (*power)(Handle device, unsigned* milliwatts) = nullptr;

  bool load() {
    void* library = dlopen("libnvidia-ml.so.1", RTLD_NOW);  // stays: other threads may be inside until the end
    if (library == nullptr) return false;
    const auto get = [&](auto& function, const char* name) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
      return function != nullptr;
    };
    return get(init, "nvmlInit_v2") && get(find, "nvmlDeviceGetHandleByPciBusId_v2") &&
           get(clock, "nvmlDeviceGetClockInfo") && get(power, "nvmlDeviceGetPowerUsage") && init() == 0;
  }
};

}  // namespace

struct ClockMonitor::Impl {
  Nvml nvml;
  Nvml::Handle device = nullptr;
  std::mutex mutex;  // guards the sums
  ClockSample sum;
  int samples = 0;
  std::condition_variable_any stopped;
  std::jthread thread;  // last: joined before what it uses goes

  void sample(const std::stop_token& stop) {
    constexpr int kSmClock = 1;
    std::unique_lock lock(mutex);
    while (!stop.stop_requested()) {
      unsigned mhz = 0, milliwatts = 0;
      if (nvml.clock(device, kSmClock, &mhz) == 0 && nvml.power(device, &milliwatts) == 0) {
        sum.sm_mhz += mhz;
        sum.watts += 1e-3 * milliwatts;
        ++samples;
      }
      stopped.wait_for(lock, stop, kInterval, [] { return false; });
    }
  }
};

ClockMonitor::ClockMonitor(const std::string& pci_bus_id) {
  if (pci_bus_id.empty()) return;
  auto impl = std::make_unique<Impl>();
  if (!impl->nvml.load() || impl->nvml.find(pci_bus_id.c_str(), &impl->device) != 0) return;
  impl_ = std::move(impl);
  impl_->thread = std::jthread([monitor = impl_.get()](const std::stop_token& stop) { monitor->sample(stop); });
}

ClockMonitor::~ClockMonitor() = default;

std::optional<ClockSample> ClockMonitor::mean_since_last() {
  if (!impl_) return std::nullopt;
  const std::lock_guard lock(impl_->mutex);
  if (impl_->samples == 0) return std::nullopt;
  const double n = impl_->samples;
  const ClockSample mean{impl_->sum.sm_mhz / n, impl_->sum.watts / n};
  impl_->sum = {};
  impl_->samples = 0;
  return mean;
}

}  // namespace trainer
