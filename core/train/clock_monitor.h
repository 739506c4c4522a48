// The card's clock and power while something is measured: a figure in TFLOP/s means little without them.
#pragma once
#include <memory>
#include <optional>
#include <string>

namespace trainer {

struct ClockSample {
  double sm_mhz = 0.0;  // of the streaming multiprocessors
  double watts = 0.0;
};

/// Asks NVIDIA's management library (NVML, part of the driver) in the background. Gives nothing where it is missing.
class ClockMonitor {
 public:
  /// `pci_bus_id` as CUDA names the card; empty: no card.
  explicit ClockMonitor(const std::string& pci_bus_id);
  ~ClockMonitor();

  /// Means since the last call, or since construction; empty when there was no sample.
  std::optional<ClockSample> mean_since_last();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;  // null: nothing to ask
};

}  // namespace trainer
