#include <cstdio>
#include <fstream>

#include "core/runtime/fault.h"
#include "core/train/bench.h"
#include "core/train/reporting/tables.h"
#include "core/train/reporting/throughput.h"
#include "launch/bootstrap.h"
#include "launch/commands.h"
#include "launch/rank_device.h"
#include "launch/read_config.h"

namespace trainer {
namespace {

void write_line(const std::string& path, const std::string& line) {
  std::ofstream file(path, std::ios::app);
  file << line << '\n';
  if (!file.flush()) fail(ExitCode::other, "cannot write to '{}'", path);
}

}  // namespace

ExitCode command_bench(const BenchCommandOptions& options, Bootstrap& bootstrap) {
  const FaultPlan no_fault;
  const Config config = shared_config(options.config, bootstrap, *bootstrap.world({}), DataUse::none);
  const RankDevice rank_device(config.train.device, bootstrap.local_rank(), bootstrap.local_size());
  Context ctx = rank_device.context();
  ctx.deterministic = config.train.deterministic;
  ctx.attention = config.train.attention;
  BenchDevice device{.description = rank_device.description(),
                     .peak_tflops = peak_tflops(rank_device.card(), weight_dtype(config.precision.dtype))};
  if (ctx.device.kind == DeviceKind::cuda) {
    const DeviceProperties properties = device_properties(ctx.device);
    device.pci_bus_id = properties.pci_bus_id;
    device.total_bytes = properties.total_bytes;
  }
  const bool lead = bootstrap.rank() == 0;
  Engine engine(config, ctx, bootstrap.world(ctx.device, {.timeout_seconds = config.comm.timeout_seconds}), no_fault);
  if (lead) {
    fmt::print("{}\n{}\n{}\n", model_table(config.model, engine.model().layout().global_numel()),
               memory_table(engine.memory_estimate()),
               throughput_note(config.model, config.train.seq_length, device.peak_tflops));
    std::fflush(stdout);
  }
  const BenchResult result = run_bench(engine, options.bench, device);
  if (!lead) return ExitCode::ok;
  const std::string json = bench_json(config, result, engine.memory_estimate(), device);
  fmt::print("{}", bench_report(config, result, engine.memory_estimate(), device));
  if (!options.json.empty()) write_line(options.json, json);
  return ExitCode::ok;
}

}  // namespace trainer
