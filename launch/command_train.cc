#include <fmt/ranges.h>
#include <unistd.h>

#include <utility>

#include "core/runtime/log.h"
#include "core/runtime/phase_times.h"
#include "core/train/cards.h"
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
  FaultPlan fault = FaultPlan::from_environment();
  fault.set_rank(bootstrap.rank(), bootstrap.size());
  std::unique_ptr<Communicator> handshake = bootstrap.world({.fault = &fault, .stop = &stop});
  const Config config = shared_config(options, bootstrap, *handshake, DataUse::train);
  startup.end("configuration");

  Log log(/*console=*/bootstrap.rank() == 0);
  const RankDevice device(config.train.device, bootstrap.local_rank(), bootstrap.local_size(),
                          [&log](const std::string& warning) { log.warn(warning); });
  check_card(config, device.card(), device.properties().sm);
  Context ctx = device.context();
  ctx.deterministic = config.train.deterministic;
  ctx.attention = config.train.attention;
  RankRow identity;
  identity.rank = bootstrap.rank();
  identity.host = bootstrap.host();
  identity.pid = static_cast<int>(getpid());
  identity.device = device.description();
  const DeviceProperties& card = device.properties();
  identity.pci = card.pci_bus_id;
  if (card.numa_node >= 0) identity.numa = std::to_string(card.numa_node);
  identity.nvlink = fmt::format("{}", fmt::join(card.nvlink_peers, " "));
  const Launch launch{.ctx = ctx,
                      .identity = identity,
                      .versions = version_text(),
                      .peak_tflops = peak_tflops(device.card(), weight_dtype(config.precision.dtype)),
                      .stop = stop,
                      .step = bootstrap.step(),
                      .startup = startup};
  startup.end("device");
  std::unique_ptr<Communicator> world =
      bootstrap.world(ctx.device, {.timeout_seconds = config.comm.timeout_seconds,
                                   .fault = &fault,
                                   .stop = &stop,
                                   .peer_copy_bytes = config.comm.peer_copies ? kPeerCopyBytes : 0});
  startup.end("communicators");
  return Trainer(config, launch, std::move(world), fault, log).run();
}

}  // namespace trainer
