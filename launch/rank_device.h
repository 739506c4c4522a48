// Which device a rank computes on.
#pragma once
#include <memory>
#include <optional>
#include <string>

#include "core/config/config.h"
#include "core/runtime/device.h"
#include "kernels/backend.h"

namespace trainer {

class RankDevice {
 public:
  /// `local_rank`: place among the ranks of this host; `local_size`: how many these are. Throws Error(config) when
  /// train.device: cuda cannot be had: no card, no CUDA in this build, more ranks than cards. `warn`:
  /// make_cuda_backend's.
  RankDevice(DeviceChoice choice, int local_rank, int local_size, Warn warn = {});

  const Context& context() const { return context_; }
  /// "cuda:0 NVIDIA H200", "cpu (2 threads)"
  const std::string& description() const { return description_; }
  /// CUDA's name of the card; empty on the CPU.
  const std::string& card() const { return properties_.name; }
  /// Empty on the CPU.
  const DeviceProperties& properties() const { return properties_; }

 private:
  std::unique_ptr<DeviceContext> device_;
  std::shared_ptr<CudaBackend> backend_;
  Context context_;
  std::string description_;
  DeviceProperties properties_;
};

}  // namespace trainer
