// The processes of a job: where each rank runs, whether it is alive, and whether one of them has failed.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace trainer {

/// A rank's process. Exchanged between the ranks as bytes.
struct RankProcess {
  char build[48] = {};  // of the program (build_id.h)
  char host[64] = {};
  std::int64_t pid = 0;
  std::uint64_t start_time = 0;  // clock ticks since boot: with pid it names one process for good
  std::int32_t node = 0;         // lowest rank that shares this rank's memory
  std::int32_t local_rank = 0;   // place among the ranks of the same node
};

/// This process; `node` and `local_rank` are left to the caller.
RankProcess this_process();

enum class ProcessState : std::uint8_t {
  unknown,  // on another host, or not visible from here
  running,
  stopped,  // by SIGSTOP or a debugger
  ended,
  unreachable,  // on another host, and the connection to it is lost: as a rule it has ended
};

/// The collective that this process entered last, over all groups.
struct LastOperation {
  std::string_view kind = "none";
  std::string group;
  std::uint64_t number = 0;  // counts the collectives of the group
  std::int64_t bytes = 0;
  bool finished = true;
};

/// Memory that the ranks of a node share, zero at first.
struct NodeMemory {
  std::int32_t* failure = nullptr;
  std::int64_t* queued = nullptr;  // [ranks of the node]: collectives that each has come to; null: not counted
};

/// What a rank knows about the others. Ranks of the same node are watched through /proc: when one dies, the others can
/// say so at once and by name, instead of waiting for a timeout.
class JobRanks {
 public:
  /// `ranks` [world size]. `connection_lost` tells whether another rank has closed its connection to this one; without
  /// connections (MPI) the end of the launcher counts as the end of ranks elsewhere. Any thread may call it.
  JobRanks(std::vector<RankProcess> ranks, int rank, NodeMemory shared, std::function<bool(int)> connection_lost = {});

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(ranks_.size()); }
  const RankProcess& process(int rank) const { return ranks_[static_cast<std::size_t>(rank)]; }
  /// Ranks on this rank's node.
  int local_size() const;
  ProcessState state(int rank) const;
  /// "rank 3 (host node-2)", with ", stopped" or ", has ended" where that is known.
  std::string describe(int rank) const;
  /// Ranks anywhere in the job that are seen to be stopped or gone, each with "; " before it: whoever waits for a rank
  /// that waits for one of these would otherwise name the wrong one.
  std::string culprits() const;
  /// The process that started this one (mpirun, a daemon of it or of Slurm) is gone.
  bool launcher_ended() const;

  /// This rank has come to one more collective, or queued it on its GPU. Any thread may ask late_ranks().
  void count_queued() const;
  /// Ranks of this node that have come to fewer collectives than this one, each with "; " before it. All come to the
  /// same number, so that in a hang these are the ones that did not come, or wait for such a one.
  std::string late_ranks() const;

  /// True for the first rank of a node that asks: it reports the error and ends the job with `exit_code`.
  bool claim_failure(int exit_code = 1);
  /// A rank of this node has claimed.
  bool failure_claimed() const { return claimed_code() != 0; }
  /// Its exit code; 0: none has.
  int claimed_code() const;

  /// The training step that runs, counted from 1; 0: none has begun. For reports, from any thread.
  std::atomic<std::int64_t>& step() { return step_; }

  LastOperation& last_operation() { return last_; }
  /// "all_reduce number 20 of group 'dp' (4096 bytes), not finished"
  std::string last_operation_text() const;

 private:
  std::vector<RankProcess> ranks_;
  std::vector<bool> watched_;
  int rank_;
  int launcher_pid_;
  NodeMemory shared_;
  std::function<bool(int)> connection_lost_;
  std::atomic<std::int64_t> step_{0};
  LastOperation last_;
};

}  // namespace trainer
