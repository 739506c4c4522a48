#include "parallel/mpi_job.h"

#include <mpi.h>

#include <cstdlib>
#include <cstring>
#include <exception>
#include <utility>
#include <vector>

#include "core/runtime/check.h"
#include "parallel/mpi_transport.h"

namespace trainer {
namespace {

/// Memory that the ranks of a node share.
struct Shared {
  MPI_Win window = MPI_WIN_NULL;
  NodeMemory memory;

  /// Collective over the ranks of a node.
  explicit Shared(MPI_Comm node) {
    int rank = 0, size = 0;
    MPI_Comm_rank(node, &rank);
    MPI_Comm_size(node, &size);
    constexpr MPI_Aint kWord = sizeof(std::int64_t);
    const MPI_Aint bytes = kWord * (1 + size);
    void* mine = nullptr;
    MPI_Win_allocate_shared(rank == 0 ? bytes : 0, static_cast<int>(kWord), MPI_INFO_NULL, node, &mine, &window);
    MPI_Aint found = 0;
    int unit = 0;
    void* first = nullptr;
    MPI_Win_shared_query(window, 0, &found, &unit, &first);
    if (rank == 0) std::memset(first, 0, static_cast<std::size_t>(bytes));
    memory = {static_cast<std::int32_t*>(first), static_cast<std::int64_t*>(first) + 1};
    MPI_Barrier(node);
  }
};

class MpiJob final : public Job {
 public:
  MpiJob(int* argc, char*** argv);
  ~MpiJob() override;
  MpiJob(const MpiJob&) = delete;
  MpiJob& operator=(const MpiJob&) = delete;

  [[noreturn]] void abort(int exit_code) override;

 private:
  std::unique_ptr<Transport> transport() override;

  std::unique_ptr<Shared> shared_;
};

MpiJob::MpiJob(int* argc, char*** argv) {
  // Other threads (the data loader) never call MPI; SERIALIZED lets the thread that does be another than the first.
  int provided = 0;
  if (MPI_Init_thread(argc, argv, MPI_THREAD_SERIALIZED, &provided) != MPI_SUCCESS)
    fail(ExitCode::communication, "MPI_Init_thread failed");
  int rank = 0, size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);

  // Which ranks share memory decides the local rank. Environment variables of launchers disagree: inside sbatch,
  // SLURM_LOCALID is 0 for every rank that mpirun starts.
  MPI_Comm node = MPI_COMM_NULL;
  MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &node);
  shared_ = std::make_unique<Shared>(node);

  RankProcess mine = this_process();
  MPI_Comm_rank(node, &mine.local_rank);
  mine.node = rank;
  MPI_Bcast(&mine.node, 1, MPI_INT32_T, 0, node);
  MPI_Comm_free(&node);
  std::vector<RankProcess> all(static_cast<std::size_t>(size));
  MPI_Allgather(&mine, static_cast<int>(sizeof mine), MPI_BYTE, all.data(), static_cast<int>(sizeof mine), MPI_BYTE,
                MPI_COMM_WORLD);
  ranks_ = std::make_shared<JobRanks>(std::move(all), rank, shared_->memory);
}

MpiJob::~MpiJob() {
  if (std::uncaught_exceptions() > 0) return;
  MPI_Win_free(&shared_->window);
  MPI_Finalize();
}

std::unique_ptr<Transport> MpiJob::transport() {
  MPI_Comm world = MPI_COMM_NULL;
  check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &world), "MPI_Comm_dup");
  return make_mpi_transport(world);
}

void MpiJob::abort(int exit_code) {
  MPI_Abort(MPI_COMM_WORLD, exit_code);
  std::_Exit(exit_code);
}

}  // namespace

std::unique_ptr<Job> join_mpi_job(int* argc, char*** argv) {
  return std::make_unique<MpiJob>(argc, argv);
}

}  // namespace trainer
