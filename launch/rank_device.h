// Which device a rank computes on.
#pragma once
#include <memory>
#include <string>

#include "core/config/config.h"
#include "core/runtime/device.h"
#include "kernels/backend.h"

namespace trainer {

class RankDevice {
 public:
  /// `local_rank`: place among the ranks of this host; `local_size`: how many these are. Throws Error(config) when
  /// train.device: cuda cannot be had (no card, no CUDA in this build, more ranks than cards), or when the card cannot
  /// do what `config` asks. `warn`: make_cuda_backend's.
  RankDevice(const Config& config, int local_rank, int local_size, Warn warn = {});

  /// With the kernels that the configuration chooses.
  const Context& context() const { return context_; }
  /// "cuda:0 NVIDIA H200", "cpu (2 threads)"
  const std::string& description() const { return description_; }
  /// CUDA's name of the card; empty on the CPU.
  const std::string& card() const { return properties_.name; }
  /// As the device was found; empty on the CPU.
  const DeviceProperties& properties() const { return properties_; }

 private:
  void open_card(Device device, Warn warn);

  std::unique_ptr<DeviceContext> device_;
  std::shared_ptr<CudaBackend> backend_;
  Context context_;
  std::string description_;
  DeviceProperties properties_;
};

}  // namespace trainer
