#include <unistd.h>

#include <cstdlib>
#include <utility>

#include "core/config/reader.h"
#include "core/config/resolve.h"
#include "core/runtime/log.h"
#include "core/train/stop_signal.h"
#include "core/train/trainer.h"
#include "launch/bootstrap.h"
#include "launch/commands.h"
#include "parallel/host_exchange.h"

namespace trainer {
namespace {

/// Rank 0 reads the configuration and all ranks get its resolved text, so that no rank can see another file.
Config shared_config(const ConfigOptions& options, const Bootstrap& bootstrap, Communicator& world) {
  std::string text;
  if (bootstrap.rank() == 0) {
    Config config = read_config({.files = options.files,
                                 .sets = options.sets,
                                 .environment = config_environment(),
                                 .world_size = bootstrap.size()});
    resolve_defaults(config, bootstrap.size());
    text = resolved_yaml(config);
  }
  return config_from_yaml(broadcast_string(world, text, 0), "the configuration of rank 0");
}

int threads_of_this_process() {
  const char* threads = std::getenv("OMP_NUM_THREADS");  // NOLINT(concurrency-mt-unsafe): no thread changes it
  return threads != nullptr ? std::atoi(threads) : static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
}

Context choose_device(const Config& config) {
  if (config.train.device == DeviceChoice::cuda)
    fail(ExitCode::config, "train.device is cuda, but this build has no CUDA kernels; set train.device: cpu");
  return {};
}

}  // namespace

ExitCode command_train(const ConfigOptions& options, Bootstrap& bootstrap) {
  const std::atomic<bool>& stop = install_stop_signal();
  FaultPlan fault = FaultPlan::from_environment();
  fault.set_rank(bootstrap.rank());
  std::unique_ptr<Communicator> handshake = bootstrap.world({.fault = &fault, .stop = &stop});
  const Config config = shared_config(options, bootstrap, *handshake);
  std::unique_ptr<Communicator> world =
      bootstrap.world({.timeout_seconds = config.comm.timeout_seconds, .fault = &fault, .stop = &stop});

  Log log(/*console=*/bootstrap.rank() == 0);
  const Launch launch{.ctx = choose_device(config),
                      .identity = {.rank = bootstrap.rank(),
                                   .host = bootstrap.host(),
                                   .pid = static_cast<int>(getpid()),
                                   .device = fmt::format("cpu ({} threads)", threads_of_this_process())},
                      .versions = version_text(),
                      .peak_tflops = std::nullopt,
                      .stop = stop};
  return Trainer(config, launch, std::move(world), fault, log).run();
}

}  // namespace trainer
