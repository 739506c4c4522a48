#include "parallel/mpi_transport.h"

#include <algorithm>
#include <exception>
#include <numeric>

#include "core/runtime/check.h"

namespace trainer {
namespace {

std::string error_text(int code) {
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(code, text, &length);
  return text;
}

class MpiTransport final : public Transport {
 public:
  explicit MpiTransport(MPI_Comm comm);
  ~MpiTransport() override;
  MpiTransport(const MpiTransport&) = delete;
  MpiTransport& operator=(const MpiTransport&) = delete;

  int rank() const override { return rank_; }
  const std::vector<int>& world_ranks() const override { return world_ranks_; }
  void send(int peer, std::uint64_t number, const void* data, std::int64_t bytes) override;
  void receive(int peer, std::uint64_t number, void* data, std::int64_t bytes) override;
  State progress() override;
  bool done(std::size_t i) override;
  std::int64_t received(std::size_t i) override;
  std::string failure(std::size_t i) override;
  void clear() override {
    requests_.clear();
    receives_.clear();
  }
  void abandon() override;
  std::unique_ptr<Transport> part(const std::vector<int>& members) override;

 private:
  int tag(std::uint64_t number) const { return static_cast<int>(number % static_cast<std::uint64_t>(tags_)); }

  MPI_Comm comm_;
  int rank_ = 0;
  std::vector<int> world_ranks_;
  int tags_ = 1;  // tags in use: number modulo this
  bool failed_ = false;
  std::vector<MPI_Request> requests_;
  std::vector<bool> receives_;  // [requests]
  std::vector<MPI_Status> statuses_;
};

MpiTransport::MpiTransport(MPI_Comm comm) : comm_(comm) {
  check_mpi(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  int size = 0;
  check_mpi(MPI_Comm_rank(comm_, &rank_), "MPI_Comm_rank");
  check_mpi(MPI_Comm_size(comm_, &size), "MPI_Comm_size");

  MPI_Group group = MPI_GROUP_NULL, world = MPI_GROUP_NULL;
  MPI_Comm_group(comm_, &group);
  MPI_Comm_group(MPI_COMM_WORLD, &world);
  std::vector<int> own(static_cast<std::size_t>(size));
  std::iota(own.begin(), own.end(), 0);
  world_ranks_.resize(own.size());
  check_mpi(MPI_Group_translate_ranks(group, size, own.data(), world, world_ranks_.data()),
            "MPI_Group_translate_ranks");
  MPI_Group_free(&group);
  MPI_Group_free(&world);

  void* upper_bound = nullptr;
  int found = 0;
  check_mpi(MPI_Comm_get_attr(comm_, MPI_TAG_UB, &upper_bound, &found), "MPI_Comm_get_attr");
  tags_ = found != 0 ? *static_cast<int*>(upper_bound) : 32767;  // the standard's least
}

MpiTransport::~MpiTransport() {
  int finalized = 0;
  MPI_Finalized(&finalized);
  // While an exception passes, other ranks may not come to a collective call.
  if (finalized == 0 && std::uncaught_exceptions() == 0) MPI_Comm_free(&comm_);
}

void MpiTransport::send(int peer, std::uint64_t number, const void* data, std::int64_t bytes) {
  requests_.push_back(MPI_REQUEST_NULL);
  receives_.push_back(false);
  check_mpi(MPI_Isend(data, static_cast<int>(bytes), MPI_BYTE, peer, tag(number), comm_, &requests_.back()),
            "MPI_Isend");
}

void MpiTransport::receive(int peer, std::uint64_t number, void* data, std::int64_t bytes) {
  requests_.push_back(MPI_REQUEST_NULL);
  receives_.push_back(true);
  check_mpi(MPI_Irecv(data, static_cast<int>(bytes), MPI_BYTE, peer, tag(number), comm_, &requests_.back()),
            "MPI_Irecv");
}

Transport::State MpiTransport::progress() {
  statuses_.resize(requests_.size());
  int done = 0;
  const int code = MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &done, statuses_.data());
  failed_ = code == MPI_ERR_IN_STATUS;
  if (!failed_) check_mpi(code, "MPI_Testall");
  return failed_ ? State::failed : done != 0 ? State::done : State::waiting;
}

bool MpiTransport::done(std::size_t i) {
  int done = 0;
  MPI_Request_get_status(requests_[i], &done, MPI_STATUS_IGNORE);
  return done != 0;
}

std::int64_t MpiTransport::received(std::size_t i) {
  int bytes = 0;
  MPI_Get_count(&statuses_[i], MPI_BYTE, &bytes);
  return bytes;
}

std::string MpiTransport::failure(std::size_t i) {
  const int error = failed_ ? statuses_[i].MPI_ERROR : MPI_SUCCESS;
  return error == MPI_SUCCESS || error == MPI_ERR_PENDING ? std::string() : error_text(error);
}

void MpiTransport::abandon() {
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    if (requests_[i] == MPI_REQUEST_NULL) continue;
    if (receives_[i]) MPI_Cancel(&requests_[i]);
    MPI_Request_free(&requests_[i]);
  }
  clear();
}

std::unique_ptr<Transport> MpiTransport::part(const std::vector<int>& members) {
  const auto place = std::find(members.begin(), members.end(), rank_) - members.begin();
  MPI_Comm part = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split(comm_, /*color=*/members.front(), static_cast<int>(place), &part), "MPI_Comm_split");
  return std::make_unique<MpiTransport>(part);
}

}  // namespace

void check_mpi(int code, const char* call) {
  if (code != MPI_SUCCESS) fail(ExitCode::communication, "{}: {}", call, error_text(code));
}

std::unique_ptr<Transport> make_mpi_transport(MPI_Comm comm) {
  return std::make_unique<MpiTransport>(comm);
}

}  // namespace trainer
