// One NCCL communicator, and what is queued on it. Included by nccl_*.cc only.
#pragma once
#include <nccl.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "core/runtime/device.h"
#include "parallel/job.h"
#include "parallel/nccl_peers.h"

namespace trainer {

/// Throws Error(communication) that names the call, NCCL's reason and, each after "; ", ranks that may be its cause.
[[noreturn]] void nccl_failed(ncclResult_t result, std::string_view call, std::string_view ranks = {});

class NcclGroup {
 public:
  /// Connects `size` ranks that were all given the same `id`. Collective; ends at options.timeout_seconds.
  NcclGroup(std::string name, const ncclUniqueId& id, int rank, int size, Device device,
            std::shared_ptr<const JobRanks> ranks, const CommunicatorOptions& options);
  /// Collective; while an exception passes, other ranks are not waited for.
  ~NcclGroup();
  NcclGroup(const NcclGroup&) = delete;
  NcclGroup& operator=(const NcclGroup&) = delete;

  /// Queues a collective: call(comm, stream) is the NCCL call. A group that was used in another stream continues in
  /// this one after what is queued there.
  template <class Call>
  void queue(const Context& ctx, std::string_view kind, std::int64_t bytes, const Call& call) {
    begin(ctx);
    settle(call(comm_, static_cast<cudaStream_t>(ctx.stream)), kind);
    end(ctx, kind, bytes);
  }

  /// Lets peers() copy between the GPUs, where they can. `host`: a communicator of the same ranks. Collective.
  void connect_peers(Communicator& host) { peers_ = PeerCopies::connect(host, device_); }
  /// To be used in queue(); null where NCCL has to do everything.
  PeerCopies* peers() const { return peers_.get(); }

  /// Ends what is in flight; nothing can be queued afterwards.
  void abort();

  struct Progress {
    std::string oldest;  // not done: "all_reduce number 20 of group 'dp' (4096 bytes)"; empty: all are done
    std::chrono::steady_clock::time_point since;  // when the one before it was done, or it was queued
  };
  /// May be called on any thread.
  Progress progress();
  /// What NCCL found wrong by itself; empty: nothing.
  std::string asynchronous_error();

 private:
  using Clock = std::chrono::steady_clock;
  struct Queued {
    std::string_view kind;
    std::uint64_t number = 0;
    std::int64_t bytes = 0;
    Event done;
  };

  void begin(const Context& ctx);
  void end(const Context& ctx, std::string_view kind, std::int64_t bytes);
  /// NCCL does nothing that blocks: what is not finished when a call returns is asked for until it is.
  void settle(ncclResult_t result, std::string_view call);
  void drop_done();

  std::string name_;
  Device device_;
  std::shared_ptr<const JobRanks> ranks_;
  double timeout_seconds_;
  ncclComm_t comm_ = nullptr;
  std::unique_ptr<PeerCopies> peers_;
  void* stream_ = nullptr;  // of the last collective
  std::uint64_t number_ = 0;

  std::mutex mutex_;           // guards comm_ against the watch, and what follows
  std::deque<Queued> queued_;  // oldest first; at most kTracked
  std::vector<Event> spare_;
  Clock::time_point since_ = Clock::now();
};

}  // namespace trainer
