#include "launch/rank_device.h"

#include <unistd.h>

#include <cstdlib>
#include <optional>
#include <utility>

#include "core/runtime/check.h"
#include "core/runtime/counted.h"
#include "core/runtime/environment.h"
#include "core/train/cards.h"

namespace trainer {
namespace {

std::string cpu_description() {
  const std::string given(environment_variable("OMP_NUM_THREADS"));
  const long threads = given.empty() ? sysconf(_SC_NPROCESSORS_ONLN) : std::atol(given.c_str());
  return fmt::format("cpu ({})", counted(threads, "thread"));
}

bool may_share_cards() {
  return environment_variable("TRAINER_SHARE_DEVICE") == "1";
}

/// NCCL refuses two ranks on one card of a host. Under names of their own they are on different hosts for it, and talk
/// over sockets.
void pretend_own_host(int local_rank) {
  // NOLINTNEXTLINE(concurrency-mt-unsafe): before any thread starts
  setenv("NCCL_HOSTID", fmt::format("{}-rank-{}", host_name(), local_rank).c_str(), /*overwrite=*/0);
}

/// The card of a rank: the only one that it sees (launchers that confine ranks show each its own as number 0), or one
/// for each rank of the host.
int card_of(int local_rank, int local_size, int cards) {
  if (cards == 1 && local_size == 1) return 0;
  if (local_size <= cards) return local_rank;
  if (may_share_cards()) {
    if (local_rank == 0)
      fmt::print(stderr, "trainer: TRAINER_SHARE_DEVICE: {} ranks share {}: slow, for tests only\n", local_size,
                 counted(cards, "card"));
    pretend_own_host(local_rank);
    return local_rank % cards;
  }
  fail(ExitCode::config, "{} ranks on this host, but only {} visible; start {} a host, or set train.device: cpu",
       local_size, cards == 1 ? "1 CUDA card is" : fmt::format("{} CUDA cards are", cards), counted(cards, "rank"));
}

/// The card of this rank; nothing where it computes on the CPU.
std::optional<Device> card_of_rank(DeviceChoice choice, int local_rank, int local_size) {
  if (choice == DeviceChoice::cpu) return std::nullopt;
  // Kernels are loaded when they are first called, as CUDA 12.2 and later do by themselves.
  setenv("CUDA_MODULE_LOADING", "LAZY", /*overwrite=*/0);  // NOLINT(concurrency-mt-unsafe): before any thread starts
  const int cards = device_count();
  if (cards > 0) return Device{DeviceKind::cuda, card_of(local_rank, local_size, cards)};
  if (choice == DeviceChoice::cuda)
    fail(ExitCode::config,
         "train.device is cuda, but there is no CUDA card for this build (see trainer --version); set "
         "train.device: cpu or auto");
  return std::nullopt;
}

}  // namespace

RankDevice::RankDevice(const Config& config, int local_rank, int local_size, Warn warn)
    : description_(cpu_description()) {
  if (const auto device = card_of_rank(config.train.device, local_rank, local_size))
    open_card(*device, std::move(warn));
  check_card(config, card(), properties_.sm);
  context_.deterministic = config.train.deterministic;
  context_.attention = config.train.attention;
}

void RankDevice::open_card(Device device, Warn warn) {
  device_ = std::make_unique<DeviceContext>(device);
  context_ = device_->context();
  backend_ = make_cuda_backend(context_, std::move(warn));
  context_.backend = backend_.get();
  properties_ = device_properties(device);
  description_ = fmt::format("cuda:{} {}", device.index, properties_.name);
}

}  // namespace trainer
