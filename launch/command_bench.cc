#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <utility>

#include "core/runtime/fault.h"
#include "core/train/bench.h"
#include "core/train/comm_bench.h"
#include "core/train/reporting/tables.h"
#include "core/train/reporting/throughput.h"
#include "launch/bootstrap.h"
#include "launch/commands.h"
#include "launch/rank_device.h"
#include "launch/read_config.h"

namespace trainer {
namespace {

/// Before the measurement, which may take long, and not after it.
std::ofstream open_json(const std::string& path) {
  std::ofstream file;
  if (path.empty()) return file;
  file.open(path, std::ios::app);
  if (!file) fail(ExitCode::config, "--json: cannot write to '{}': {}", path, std::strerror(errno));
  return file;
}

void write_line(std::ofstream& file, const std::string& path, const std::string& line) {
  file << line << '\n';
  if (!file.flush()) fail(ExitCode::other, "--json: cannot write to '{}': {}", path, std::strerror(errno));
}

/// The links do not depend on the model: where no file describes one, another stands in. Its heads and its MLP divide
/// by 2^10 x 3^2 x 5 x 7, so that nearly any tensor-parallel size of --set splits it.
ConfigOptions with_any_model(const ConfigOptions& options, int ranks) {
  if (!options.files.empty()) return options;
  constexpr int kDivisible = (1 << 10) * 9 * 5 * 7;
  ConfigOptions all{
      {},
      {"model.hidden_size=2", "model.num_layers=1", fmt::format("model.num_attention_heads={}", kDivisible),
       "model.head_dim=2", fmt::format("model.intermediate_size={}", kDivisible), "model.vocab_size=1",
       "train.seq_length=1", "train.train_steps=1", "precision.dtype=float32",
       fmt::format("train.global_batch_size={}", ranks)}};
  all.sets.insert(all.sets.end(), options.sets.begin(), options.sets.end());
  return all;
}

ExitCode bench_comm(const BenchCommandOptions& options, const Config& config, const Context& ctx, bool lead,
                    std::unique_ptr<Communicator> world, std::ofstream json) {
  const Mesh mesh(std::move(world), mesh_shape(config));
  const auto times = run_comm_bench(ctx, mesh, options.comm_max_mib << 20);
  if (!lead) return ExitCode::ok;
  fmt::print("{}", comm_report(times));
  if (!options.json.empty()) write_line(json, options.json, comm_json(times));
  return ExitCode::ok;
}

}  // namespace

ExitCode command_bench(const BenchCommandOptions& options, Bootstrap& bootstrap) {
  if (options.comm && bootstrap.size() == 1)
    fail(ExitCode::config,
         "bench --comm times the links between ranks, and there is one rank; right would be 'mpirun -np N trainer "
         "bench --comm ...' with N of 2 or more");
  if (!std::isfinite(options.bench.floor_seconds))
    fail(ExitCode::config, "--floor-seconds {}: right would be seconds, or 0 for no floor",
         options.bench.floor_seconds);
  const FaultPlan no_fault;
  const ConfigOptions sources = options.comm ? with_any_model(options.config, bootstrap.size()) : options.config;
  const Config config = shared_config(sources, bootstrap, *bootstrap.world({}), DataUse::none);
  const bool lead = bootstrap.rank() == 0;
  const RankDevice rank_device(config, bootstrap.local_rank(), bootstrap.local_size(),
                               [lead](const std::string& warning) {
                                 if (lead) fmt::print(stderr, "trainer: {}\n", warning);
                               });
  const Context& ctx = rank_device.context();
  const BenchDevice device{.description = rank_device.description(),
                           .pci_bus_id = rank_device.properties().pci_bus_id,
                           .peak_tflops = peak_tflops(rank_device.card(), weight_dtype(config.precision.dtype)),
                           .total_bytes = rank_device.properties().total_bytes};
  std::ofstream json = open_json(lead ? options.json : std::string());
  auto world = bootstrap.world(ctx.device, communicator_options(config.comm));
  if (options.comm) return bench_comm(options, config, ctx, lead, std::move(world), std::move(json));
  Engine engine(config, ctx, std::move(world), no_fault);
  if (lead) {
    fmt::print("{}\n{}\n{}\n", model_table(config.model, engine.model().layout().global_numel()),
               memory_table(engine.memory_estimate()),
               throughput_note(config.model, config.train.seq_length, device.peak_tflops));
    std::fflush(stdout);
  }
  BenchResult result = run_bench(engine, options.bench, device);
  if (lead) {
    fmt::print("{}", bench_report(config, result, engine.memory_estimate(), device));
    std::fflush(stdout);
  }
  if (options.bench.floor_seconds > 0) add_floor(engine, options.bench.floor_seconds, device, result);
  if (!lead) return ExitCode::ok;
  if (options.bench.floor_seconds > 0) fmt::print("\n{}", floor_report(result));
  if (!options.json.empty())
    write_line(json, options.json, bench_json(config, result, engine.memory_estimate(), device));
  return ExitCode::ok;
}

}  // namespace trainer
