#include "parallel/nccl_group.h"

#include <sched.h>

#include <exception>
#include <thread>
#include <utility>

#include "core/runtime/check.h"

namespace trainer {
namespace {

using namespace std::chrono_literals;

/// Collectives whose end is watched one by one. When more are queued, the newest of them stands for all that follow.
constexpr std::size_t kTracked = 256;

constexpr int kPollsBeforeSleep = 10000;

std::string error_text(ncclResult_t result) {
  std::string text = ncclGetErrorString(result);
  const char* detail = ncclGetLastError(nullptr);
  if (detail != nullptr && *detail != '\0') text += fmt::format(" ({})", detail);
  return text;
}

}  // namespace

void nccl_failed(ncclResult_t result, std::string_view call, std::string_view ranks) {
  fail(ExitCode::communication, "NCCL: {}: {}{}", call, error_text(result), ranks);
}

NcclGroup::NcclGroup(std::string name, const ncclUniqueId& id, int rank, int size, Device device,
                     std::shared_ptr<const JobRanks> ranks, const CommunicatorOptions& options)
    : name_(std::move(name)), device_(device), ranks_(std::move(ranks)), timeout_seconds_(options.timeout_seconds) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  settle(ncclCommInitRankConfig(&comm_, size, id, rank, &config), "ncclCommInitRankConfig");
}

NcclGroup::~NcclGroup() {
  if (comm_ == nullptr) return;
  if (std::uncaught_exceptions() > 0) {
    abort();
    return;
  }
  try {
    settle(ncclCommFinalize(comm_), "ncclCommFinalize");
    ncclCommDestroy(comm_);
  } catch (const Error&) {
    abort();
  }
}

void NcclGroup::abort() {
  const std::lock_guard lock(mutex_);
  if (peers_ != nullptr) peers_->abort();
  if (comm_ != nullptr) ncclCommAbort(comm_);
  comm_ = nullptr;
}

void NcclGroup::settle(ncclResult_t result, std::string_view call) {
  const Clock::time_point start = Clock::now();
  for (int polls = 0; result == ncclInProgress; ++polls) {
    if (ranks_->failure_claimed())
      fail(ExitCode::communication, "{} of group '{}': another rank has failed", call, name_);
    if (Clock::now() - start > std::chrono::duration<double>(timeout_seconds_))
      fail(ExitCode::communication, "{} of group '{}': not done after comm.timeout_seconds {}{}", call, name_,
           timeout_seconds_, ranks_->culprits());
    if (polls < kPollsBeforeSleep)
      sched_yield();
    else
      std::this_thread::sleep_for(1ms);
    const std::lock_guard lock(mutex_);
    const ncclResult_t asked = ncclCommGetAsyncError(comm_, &result);
    if (asked != ncclSuccess) result = asked;
  }
  if (result != ncclSuccess)
    nccl_failed(result, fmt::format("{} of group '{}'", call, name_), ranks_->culprits() + ranks_->late_ranks());
}

void NcclGroup::begin(const Context& ctx) {
  if (comm_ == nullptr) fail(ExitCode::communication, "group '{}' was given up", name_);
  const std::lock_guard lock(mutex_);
  if (ctx.stream != stream_ && !queued_.empty()) queued_.back().done.wait(ctx);
  stream_ = ctx.stream;
}

void NcclGroup::end(const Context& ctx, std::string_view kind, std::int64_t bytes) {
  const std::lock_guard lock(mutex_);
  drop_done();
  if (queued_.empty()) since_ = Clock::now();
  if (queued_.size() < kTracked) {
    if (spare_.empty()) spare_.emplace_back(device_);
    queued_.push_back({.done = std::move(spare_.back())});
    spare_.pop_back();
  }
  Queued& newest = queued_.back();
  newest.kind = kind;
  newest.number = ++number_;
  newest.bytes = bytes;
  newest.done.record(ctx);
  ranks_->count_queued();
}

void NcclGroup::drop_done() {
  while (!queued_.empty() && queued_.front().done.reached()) {
    spare_.push_back(std::move(queued_.front().done));
    queued_.pop_front();
    since_ = Clock::now();
  }
}

NcclGroup::Progress NcclGroup::progress() {
  const std::lock_guard lock(mutex_);
  drop_done();
  if (queued_.empty()) return {{}, since_};
  const Queued& front = queued_.front();
  return {fmt::format("{} number {} of group '{}' ({} bytes)", front.kind, front.number, name_, front.bytes), since_};
}

std::string NcclGroup::asynchronous_error() {
  const std::lock_guard lock(mutex_);
  if (comm_ == nullptr) return {};
  ncclResult_t state = ncclSuccess;
  const ncclResult_t asked = ncclCommGetAsyncError(comm_, &state);
  if (asked != ncclSuccess) state = asked;
  return state == ncclSuccess || state == ncclInProgress ? std::string() : error_text(state);
}

}  // namespace trainer
