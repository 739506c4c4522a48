// Watches what NCCL groups have queued, on a thread of its own: the thread that computes may be waiting for a GPU that
// waits for a rank that is gone. Included by nccl_*.cc only.
#pragma once
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "parallel/nccl_communicator.h"
#include "parallel/nccl_group.h"

namespace trainer {

class NcclWatch {
 public:
  NcclWatch(std::shared_ptr<const JobRanks> ranks, Device device, const CommunicatorOptions& options,
            FailureReport report);
  ~NcclWatch();
  NcclWatch(const NcclWatch&) = delete;
  NcclWatch& operator=(const NcclWatch&) = delete;

  void add(const std::shared_ptr<NcclGroup>& group);
  /// Of all groups: ends what is in flight.
  void abort();

 private:
  using Clock = std::chrono::steady_clock;
  std::vector<std::shared_ptr<NcclGroup>> living();
  void run(const std::stop_token& stop);
  /// What is wrong; empty: nothing.
  std::string look();
  /// Why a collective that waits for `waited` seconds is given up; empty: it is not.
  std::string trouble(double waited);

  std::shared_ptr<const JobRanks> ranks_;
  Device device_;
  CommunicatorOptions options_;
  FailureReport report_;
  std::mutex mutex_;  // guards groups_
  std::vector<std::weak_ptr<NcclGroup>> groups_;
  Clock::time_point last_look_{}, resumed_{}, stop_seen_{};
  bool ended_before_ = false;
  std::condition_variable_any stopped_;
  std::jthread thread_;  // last: joined before what it uses goes
};

}  // namespace trainer
