// What every op is handed: where to run. Passed by reference, never stored in a global.
#pragma once

namespace trainer {

enum class DeviceKind : unsigned char { cpu, cuda };

struct Device {
  DeviceKind kind = DeviceKind::cpu;
  int index = 0;  // CUDA device ordinal of this process
};

struct Context {
  Device device;
};

}  // namespace trainer
