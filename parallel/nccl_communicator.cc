#include "parallel/nccl_communicator.h"

#include <utility>

#include "parallel/host_exchange.h"
#include "parallel/nccl_group.h"
#include "parallel/nccl_watch.h"

namespace trainer {
namespace {

/// What all groups of a rank share.
struct NcclJob {
  std::shared_ptr<const JobRanks> ranks;
  Device device;
  CommunicatorOptions options;
  NcclWatch watch;
};

/// For reductions, whose elements have a meaning.
ncclDataType_t element_type(Dtype dtype) {
  switch (dtype) {
    case Dtype::f64:
      return ncclFloat64;
    case Dtype::f32:
      return ncclFloat32;
    case Dtype::f16:
      return ncclFloat16;
    case Dtype::bf16:
      return ncclBfloat16;
    case Dtype::i32:
      return ncclInt32;
    case Dtype::i64:
      return ncclInt64;
    case Dtype::u8:
      return ncclUint8;
    case Dtype::u16:
      break;
  }
  fail(ExitCode::other, "NCCL does not reduce {}", dtype_name(dtype));
}

ncclRedOp_t reduction(ReduceOp op) {
  switch (op) {
    case ReduceOp::max:
      return ncclMax;
    case ReduceOp::min:
      return ncclMin;
    case ReduceOp::sum:
      break;
  }
  return ncclSum;
}

std::size_t bytes_of(std::int64_t count, const Tensor& tensor) {
  return static_cast<std::size_t>(count * dtype_size(tensor.dtype));
}

void alone(const Context& ctx, const Tensor& in, const Tensor& out) {
  if (in.data != out.data) copy(ctx, out.data, in.data, in.bytes());
}

bool went_wrong(ncclResult_t result) {
  return result != ncclSuccess && result != ncclInProgress;
}

/// Both in one group: neither waits for the other.
template <class Send, class Receive>
ncclResult_t send_and_receive(const Send& send, const Receive& receive) {
  ncclResult_t result = ncclGroupStart();
  if (went_wrong(result)) return result;
  result = send();
  if (!went_wrong(result)) result = receive();
  const ncclResult_t end = ncclGroupEnd();  // also after a failure: the group must not stay open
  return went_wrong(result) ? result : end;
}

/// The group of all ranks of `host`; absent when that is one.
std::shared_ptr<NcclGroup> connect(Communicator& host, NcclJob& job) {
  if (host.size() == 1) return nullptr;
  ncclUniqueId id{};
  if (host.rank() == 0) {
    const ncclResult_t result = ncclGetUniqueId(&id);
    if (result != ncclSuccess) nccl_failed(result, "ncclGetUniqueId");
  }
  host.broadcast({}, tensor_over(id.internal, Dtype::u8, 1, sizeof id.internal), 0);
  auto group =
      std::make_shared<NcclGroup>(host.name(), id, host.rank(), host.size(), job.device, job.ranks, job.options);
  if (job.options.peer_copy_bytes > 0) group->connect_peers(host);
  job.watch.add(group);
  return group;
}

class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(std::unique_ptr<Communicator> host, std::shared_ptr<NcclGroup> group, std::shared_ptr<NcclJob> job)
      : job_(std::move(job)), host_(std::move(host)), group_(std::move(group)) {}

  int rank() const override { return host_->rank(); }
  int size() const override { return host_->size(); }
  const std::string& name() const override { return host_->name(); }

  void all_reduce(const Context& ctx, const Tensor& data, ReduceOp op) override;
  void reduce_scatter(const Context& ctx, const Tensor& in, const Tensor& out) override;
  void reduce_scatter_into(const Context& ctx, const Tensor& in, const Tensor& sum, bool accumulate) override;
  void all_gather(const Context& ctx, const Tensor& in, const Tensor& out) override;
  void rotate(const Context& ctx, const Tensor& in, const Tensor& out, int shift) override;
  void broadcast(const Context& ctx, const Tensor& data, int root) override;
  void barrier() override { host_->barrier(); }
  void abort() override { job_->watch.abort(); }
  std::unique_ptr<Communicator> split(int color, int key, const std::string& name) override;

 private:
  static bool on_host(const Context& ctx) { return ctx.device.kind == DeviceKind::cpu; }
  std::int64_t enter(std::int64_t count) const { return enter_collective(job_->options.fault, count); }
  /// Where copy engines find `in` on each rank, to bring `count` elements from one to another; null: NCCL does.
  const PeerCopies::Addresses* reach(PeerCopies::Call call, std::int64_t count, const Tensor& in,
                                     const Tensor& out) const {
    const bool large = count * dtype_size(in.dtype) >= job_->options.peer_copy_bytes;
    return group_->peers() != nullptr && large ? group_->peers()->reach(*host_, call, in, out) : nullptr;
  }

  std::shared_ptr<NcclJob> job_;
  std::unique_ptr<Communicator> host_;
  std::shared_ptr<NcclGroup> group_;  // absent in a group of one rank
};

void NcclCommunicator::all_reduce(const Context& ctx, const Tensor& data, ReduceOp op) {
  check_all_reduce(data);
  if (on_host(ctx)) return host_->all_reduce(ctx, data, op);
  if (!group_) return;
  const auto count = static_cast<std::size_t>(enter(data.numel()));
  group_->queue(ctx, "all_reduce", data.bytes(), [&](ncclComm_t comm, cudaStream_t stream) {
    return ncclAllReduce(data.data, data.data, count, element_type(data.dtype), reduction(op), comm, stream);
  });
}

void NcclCommunicator::reduce_scatter(const Context& ctx, const Tensor& in, const Tensor& out) {
  check_reduce_scatter(*this, in, out);
  if (on_host(ctx)) return host_->reduce_scatter(ctx, in, out);
  if (!group_) return alone(ctx, in, out);
  const auto count = static_cast<std::size_t>(enter(out.numel()));
  const auto* const sources =
      PeerCopies::adds(in.dtype) ? reach(PeerCopies::Call::reduce_scatter, out.numel(), in, out) : nullptr;
  group_->queue(ctx, "reduce_scatter", in.bytes(), [&](ncclComm_t comm, cudaStream_t stream) {
    if (sources != nullptr)
      return group_->peers()->reduce_scatter(ctx, *sources, in, out, /*accumulate=*/false), ncclSuccess;
    return ncclReduceScatter(in.data, out.data, count, element_type(in.dtype), ncclSum, comm, stream);
  });
}

void NcclCommunicator::reduce_scatter_into(const Context& ctx, const Tensor& in, const Tensor& sum, bool accumulate) {
  const bool copies = !on_host(ctx) && group_ && in.contiguous() && sum.contiguous() && PeerCopies::adds(in.dtype);
  const auto* const sources = copies ? reach(PeerCopies::Call::reduce_scatter, sum.numel(), in, sum) : nullptr;
  if (sources == nullptr) return Communicator::reduce_scatter_into(ctx, in, sum, accumulate);
  enter(sum.numel());
  group_->queue(ctx, "reduce_scatter", in.bytes(), [&](ncclComm_t, cudaStream_t) {
    return group_->peers()->reduce_scatter(ctx, *sources, in, sum, accumulate), ncclSuccess;
  });
}

void NcclCommunicator::all_gather(const Context& ctx, const Tensor& in, const Tensor& out) {
  check_all_gather(*this, in, out);
  if (on_host(ctx)) return host_->all_gather(ctx, in, out);
  if (!group_) return alone(ctx, in, out);
  const std::size_t bytes = bytes_of(enter(in.numel()), in);
  const auto* const sources = reach(PeerCopies::Call::all_gather, in.numel(), in, out);
  group_->queue(ctx, "all_gather", out.bytes(), [&](ncclComm_t comm, cudaStream_t stream) {
    if (sources != nullptr) return group_->peers()->all_gather(ctx, *sources, in, out), ncclSuccess;
    return ncclAllGather(in.data, out.data, bytes, ncclUint8, comm, stream);
  });
}

void NcclCommunicator::rotate(const Context& ctx, const Tensor& in, const Tensor& out, int shift) {
  check_rotate(*this, in, out, shift);
  if (on_host(ctx)) return host_->rotate(ctx, in, out, shift);
  if (!group_ || shift == 0) return alone(ctx, in, out);
  const std::size_t bytes = bytes_of(enter(in.numel()), in);
  const auto* const sources = reach(PeerCopies::Call::rotate, in.numel(), in, out);
  group_->queue(ctx, "rotate", in.bytes(), [&](ncclComm_t comm, cudaStream_t stream) {
    if (sources != nullptr) return group_->peers()->rotate(ctx, *sources, in, out, shift), ncclSuccess;
    return send_and_receive(
        [&] { return ncclSend(in.data, bytes, ncclUint8, (rank() + size() - shift) % size(), comm, stream); },
        [&] { return ncclRecv(out.data, bytes, ncclUint8, (rank() + shift) % size(), comm, stream); });
  });
}

void NcclCommunicator::broadcast(const Context& ctx, const Tensor& data, int root) {
  check_broadcast(*this, data, root);
  if (on_host(ctx)) return host_->broadcast(ctx, data, root);
  if (!group_) return;
  const std::size_t bytes = bytes_of(enter(data.numel()), data);
  group_->queue(ctx, "broadcast", data.bytes(), [&](ncclComm_t comm, cudaStream_t stream) {
    return ncclBroadcast(data.data, data.data, bytes, ncclUint8, root, comm, stream);
  });
}

/// A part that has all ranks in the same order shares their NCCL communicator, which has buffers on the GPU.
std::unique_ptr<Communicator> NcclCommunicator::split(int color, int key, const std::string& name) {
  std::unique_ptr<Communicator> part = host_->split(color, key, name);
  const bool same = agree(*host_, part->size() == size() && part->rank() == rank());
  std::shared_ptr<NcclGroup> group = same ? group_ : connect(*part, *job_);
  return std::make_unique<NcclCommunicator>(std::move(part), std::move(group), job_);
}

}  // namespace

std::unique_ptr<Communicator> make_nccl_world(std::unique_ptr<Communicator> host, std::shared_ptr<const JobRanks> ranks,
                                              Device device, const CommunicatorOptions& options, FailureReport report) {
  make_current(device);
  auto job = std::shared_ptr<NcclJob>(
      new NcclJob{ranks, device, options, NcclWatch(ranks, device, options, std::move(report))});
  std::shared_ptr<NcclGroup> group = connect(*host, *job);
  return std::make_unique<NcclCommunicator>(std::move(host), std::move(group), std::move(job));
}

std::string nccl_version() {
  int version = 0;
  if (ncclGetVersion(&version) != ncclSuccess) return {};
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

}  // namespace trainer
