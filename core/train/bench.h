// How fast this machine trains a configuration, and where the time of a step goes. Needs no data: tokens are random.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/train/clock_monitor.h"
#include "core/train/engine.h"
#include "core/train/floor.h"

namespace trainer {

struct BenchOptions {
  std::int64_t warmup_steps = 5;
  std::int64_t steps = 20;          // timed
  std::int64_t profiled_steps = 3;  // whose ops are timed one by one, afterwards
  double floor_seconds = 10;        // of replaying the floor; 0: not
};

/// What launch knows about the device.
struct BenchDevice {
  std::string description;
  std::string pci_bus_id;  // empty on the CPU
  std::optional<double> peak_tflops;
  std::int64_t total_bytes = 0;  // of the card; 0 on the CPU
};

/// All calls of one op with one shape, in a mean step.
struct OpTotal {
  std::string name;
  OpCost cost;  // of one call
  double calls = 0.0;
  double ms = 0.0;
};

/// Figures of one rank.
struct BenchResult {
  std::vector<double> step_ms;  // of each timed step, on the device
  double median_ms = 0.0, min_ms = 0.0;
  double tokens_per_second = 0.0;  // of the whole job, by the median
  double tflops = 0.0;             // model TFLOP/s of one device
  std::optional<double> mfu;
  std::optional<ClockSample> clocks;  // during the timed steps
  /// Median of as many steps that communicate nothing; several ranks only. Their difference is exposed communication.
  std::optional<double> alone_ms;

  double profiled_ms = 0.0;                // mean length of a profiled step; the rows below add up to it
  std::array<double, kOpKinds> kind_ms{};  // by OpKind
  double gap_ms = 0.0;                     // no op was running: the host was late
  double data_wait_ms = 0.0;               // of the host, in a mean timed step
  std::vector<OpTotal> ops;                // longest first

  std::vector<OpProfiler::Call> calls;  // of one step

  std::optional<FloorTime> floor;
  std::string no_floor;  // why there is none
  std::optional<double> floor_mfu;
  std::optional<ClockSample> floor_clocks;

  std::int64_t device_bytes = 0;  // in use on the card, by this process where it has the card to itself
};

/// Initialises the weights, warms up, measures. Collective over the engine's world. The engine is worn out afterwards:
/// its training state is that of a benchmark.
BenchResult run_bench(Engine& engine, const BenchOptions& options, const BenchDevice& device);
/// Replays the floor of result.calls, or says in result.no_floor why it could not. Overwrites the engine's state.
void add_floor(Engine& engine, double seconds, const BenchDevice& device, BenchResult& result);

/// The result without the floor, as tables.
std::string bench_report(const Config& config, const BenchResult& result, const MemoryEstimate& planned,
                         const BenchDevice& device);
/// The floor beside the step, or why there is none.
std::string floor_report(const BenchResult& result);
/// The result as one line of JSON without the line end.
std::string bench_json(const Config& config, const BenchResult& result, const MemoryEstimate& planned,
                       const BenchDevice& device);

}  // namespace trainer
