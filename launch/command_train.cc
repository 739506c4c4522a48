#include <fmt/ranges.h>
#include <unistd.h>

#include <utility>

#include "core/runtime/log.h"
#include "core/runtime/phase_times.h"
#include "core/train/stop_signal.h"
#include "core/train/trainer.h"
#include "launch/bootstrap.h"
#include "launch/commands.h"
#include "launch/rank_device.h"
#include "launch/read_config.h"

namespace trainer {

ExitCode command_train(const ConfigOptions& options, Bootstrap& bootstrap) {
  PhaseTimes startup;
  startup.end("program");
  const std::atomic<bool>& stop = install_stop_signal();
  install_bus_error_report();
  FaultPlan fault = FaultPlan::from_environment();
  fault.set_rank(bootstrap.rank(), bootstrap.size());
  std::unique_ptr<Communicator> handshake = bootstrap.world({.fault = &fault, .stop = &stop});
  const Config config = shared_config(options, bootstrap, *handshake, DataUse::train);
  startup.end("configuration");

  Log log(/*console=*/bootstrap.rank() == 0);
  const RankDevice device(config, bootstrap.local_rank(), bootstrap.local_size(),
                          [&log](const std::string& warning) { log.warn(warning); });
  RankRow identity;
  identity.rank = bootstrap.rank();
  identity.host = bootstrap.host();
  identity.pid = static_cast<int>(getpid());
  identity.device = device.description();
  const DeviceProperties& card = device.properties();
  identity.pci = card.pci_bus_id;
  if (card.numa_node >= 0) identity.numa = std::to_string(card.numa_node);
  identity.nvlink = fmt::format("{}", fmt::join(card.nvlink_peers, " "));
  const Launch launch{.ctx = device.context(),
                      .identity = identity,
                      .versions = version_text(),
                      .peak_tflops = peak_tflops(device.card(), weight_dtype(config.precision.dtype)),
                      .stop = stop,
                      .step = bootstrap.step(),
                      .startup = startup};
  startup.end("device");
  CommunicatorOptions options_of_world = communicator_options(config.comm);
  options_of_world.fault = &fault;
  options_of_world.stop = &stop;
  std::unique_ptr<Communicator> world = bootstrap.world(launch.ctx.device, options_of_world);
  startup.end("communicators");
  return Trainer(config, launch, std::move(world), fault, log).run();
}

}  // namespace trainer
