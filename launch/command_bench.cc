#include <cstdio>
#include <fstream>
#include <memory>
#include <utility>

#include "core/runtime/fault.h"
#include "core/train/bench.h"
#include "core/train/cards.h"
#include "core/train/comm_bench.h"
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

/// The links do not depend on the model: where no file describes one, another stands in, which any tensor-parallel size
/// of --set splits.
ConfigOptions with_any_model(const ConfigOptions& options, int ranks) {
  if (!options.files.empty()) return options;
  ConfigOptions all{
      {},
      {"model.hidden_size=2", "model.num_layers=1", "model.num_attention_heads=322560", "model.head_dim=2",
       "model.intermediate_size=322560", "model.vocab_size=1", "train.seq_length=1", "train.train_steps=1",
       "precision.dtype=float32", fmt::format("train.global_batch_size={}", ranks)}};
  all.sets.insert(all.sets.end(), options.sets.begin(), options.sets.end());
  return all;
}

ExitCode bench_comm(const BenchCommandOptions& options, const Config& config, const Context& ctx, bool lead,
                    std::unique_ptr<Communicator> world) {
  const Mesh mesh(std::move(world), mesh_shape(config));
  const auto times = run_comm_bench(ctx, mesh, options.comm_max_mib << 20);
  if (!lead) return ExitCode::ok;
  fmt::print("{}", comm_report(times));
  if (!options.json.empty()) write_line(options.json, comm_json(times));
  return ExitCode::ok;
}

}  // namespace

ExitCode command_bench(const BenchCommandOptions& options, Bootstrap& bootstrap) {
  if (options.comm && bootstrap.size() == 1)
    fail(ExitCode::config,
         "bench --comm times the links between ranks, and there is one rank; right would be 'mpirun -np N trainer "
         "bench --comm ...' with N of 2 or more");
  const FaultPlan no_fault;
  const ConfigOptions sources = options.comm ? with_any_model(options.config, bootstrap.size()) : options.config;
  const Config config = shared_config(sources, bootstrap, *bootstrap.world({}), DataUse::none);
  const bool lead = bootstrap.rank() == 0;
  const RankDevice rank_device(config.train.device, bootstrap.local_rank(), bootstrap.local_size(),
                               [lead](const std::string& warning) {
                                 if (lead) fmt::print(stderr, "trainer: {}\n", warning);
                               });
  check_card(config, rank_device.card(), rank_device.properties().sm);
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
  auto world = bootstrap.world(ctx.device, {.timeout_seconds = config.comm.timeout_seconds,
                                            .peer_copy_bytes = config.comm.peer_copies ? kPeerCopyBytes : 0});
  if (options.comm) return bench_comm(options, config, ctx, lead, std::move(world));
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
  if (!options.json.empty()) write_line(options.json, bench_json(config, result, engine.memory_estimate(), device));
  return ExitCode::ok;
}

}  // namespace trainer
