#include "parallel/nccl_peers.h"

#include <cuda.h>

#include <algorithm>
#include <cstring>
#include <fstream>

#include "core/runtime/cuda_check.h"
#include "core/runtime/device.h"
#include "kernels/ops.h"
#include "parallel/host_exchange.h"
#include "parallel/job.h"

namespace trainer {
namespace {

/// Calls of the driver, found when they are needed: the program also starts on machines without one.
struct Driver {
  CUresult (*write)(CUstream, CUdeviceptr, cuuint32_t, unsigned) = nullptr;
  CUresult (*wait)(CUstream, CUdeviceptr, cuuint32_t, unsigned) = nullptr;
  CUresult (*range)(CUdeviceptr*, std::size_t*, CUdeviceptr) = nullptr;
  CUresult (*attribute)(void*, CUpointer_attribute, CUdeviceptr) = nullptr;

  bool complete() const { return write != nullptr && wait != nullptr && range != nullptr && attribute != nullptr; }
};

template <class Function>
void find(const char* name, Function& function) {
  void* entry = nullptr;
#if CUDART_VERSION >= 12050
  cudaDriverEntryPointQueryResult found{};
  const cudaError_t status = cudaGetDriverEntryPointByVersion(name, &entry, 12000, cudaEnableDefault, &found);
#else
  const cudaError_t status = cudaGetDriverEntryPoint(name, &entry, cudaEnableDefault);
#endif
  if (status == cudaSuccess) function = reinterpret_cast<Function>(entry);
}

const Driver& driver() {
  static const Driver calls = [] {
    Driver d;
    find("cuStreamWriteValue32", d.write);
    find("cuStreamWaitValue32", d.wait);
    find("cuMemGetAddressRange", d.range);
    find("cuPointerGetAttribute", d.attribute);
    return d;
  }();
  return calls;
}

void check(CUresult result, const char* call) {
  if (result != CUDA_SUCCESS)
    fail(ExitCode::communication, "CUDA driver: {}: error {}", call, static_cast<int>(result));
}

CUdeviceptr address(const void* pointer) {
  return reinterpret_cast<CUdeviceptr>(pointer);
}

/// cudaMalloc cuts smaller allocations from blocks of this size. A handle is one of the block, which a process maps
/// once.
constexpr std::size_t kBlockBytes = std::size_t{2} << 20;

/// The running kernel of this machine: ranks in containers of one host share it.
std::string boot_id() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  file >> id;
  return id;
}

struct Allocation {
  CUdeviceptr base = 0;
  std::size_t bytes = 0;
};

Allocation allocation_of(const void* data) {
  Allocation allocation;
  // NOLINTNEXTLINE(clang-analyzer-core.CallAndMessage): connect() has found all calls
  check(driver().range(&allocation.base, &allocation.bytes, address(data)), "cuMemGetAddressRange");
  return allocation;
}

std::uint64_t offset_of(const void* data) {
  return address(data) - allocation_of(data).base;
}

/// Of the allocation that holds `data`: the next one at the same address has another.
std::uint64_t identity_of(const void* data) {
  std::uint64_t identity = 0;
  // NOLINTNEXTLINE(clang-analyzer-core.CallAndMessage): as above
  check(driver().attribute(&identity, CU_POINTER_ATTRIBUTE_BUFFER_ID, address(data)), "cuPointerGetAttribute");
  return identity;
}

}  // namespace

/// A tensor as another process finds it.
struct PeerCopies::Place {
  cudaIpcMemHandle_t allocation{};
  std::uint64_t base = 0, identity = 0, offset = 0;
  std::uint64_t number = 0;  // of calls made before: has to be the same on all ranks
  bool shared = false;
};

namespace {

/// [size] places, of each rank.
template <class Place>
std::vector<Place> exchange(Communicator& host, Place place) {
  std::vector<Place> all(static_cast<std::size_t>(host.size()));
  const auto bytes = static_cast<std::int64_t>(sizeof place);
  host.all_gather({}, tensor_over(&place, Dtype::u8, 1, bytes), tensor_over(all.data(), Dtype::u8, host.size(), bytes));
  return all;
}

}  // namespace

std::unique_ptr<PeerCopies> PeerCopies::connect(Communicator& host, Device device) {
  if (host.size() == 1) return nullptr;
  const std::vector<std::string> hosts = gather_strings(host, boot_id());
  const bool one_host = !hosts.front().empty() && std::count(hosts.begin(), hosts.end(), hosts.front()) == host.size();
  if (!agree(host, one_host && driver().complete())) return nullptr;
  auto peers = std::unique_ptr<PeerCopies>(new PeerCopies(host, device));
  const bool mapped = agree(host, peers->map_words(host));
  cudaGetLastError();  // where one could not be mapped
  return mapped ? std::move(peers) : nullptr;
}

PeerCopies::PeerCopies(Communicator& host, Device device)
    : rank_(host.rank()),
      size_(host.size()),
      device_(device),
      words_(allocate(device, kBlockBytes, "the signals of peer copies")) {
  check_cuda(cudaMemset(words_.get(), 0, sizeof(Round) * static_cast<std::size_t>(kWords * size_)), "cudaMemset");
  check_cuda(cudaStreamCreateWithFlags(&abort_stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
}

PeerCopies::~PeerCopies() {
  if (abort_stream_ != nullptr) cudaStreamDestroy(abort_stream_);
}

PeerCopies::Place PeerCopies::place_of(const void* data) const {
  const Allocation allocation = allocation_of(data);
  Place place{.base = allocation.base,
              .identity = identity_of(data),
              .offset = address(data) - allocation.base,
              .number = addresses_.size()};
  place.shared =
      allocation.bytes >= kBlockBytes && cudaIpcGetMemHandle(&place.allocation, const_cast<void*>(data)) == cudaSuccess;
  return place;
}

bool PeerCopies::map_words(Communicator& host) {
  const std::vector<Place> all = exchange(host, place_of(words_.get()));
  for (int peer = 0; peer < size_; ++peer) {
    std::byte* const memory =
        peer == rank_ ? static_cast<std::byte*>(words_.get()) : mapped(peer, all[static_cast<std::size_t>(peer)]);
    if (memory == nullptr) return false;
    peer_words_.push_back(memory);
  }
  return true;
}

std::byte* PeerCopies::mapped(int peer, const Place& place) {
  if (!place.shared) return nullptr;
  Mapping& mapping = mappings_[{peer, place.base}];
  if (mapping.identity != place.identity) {
    mapping.memory.reset();  // of an allocation that is gone: the handle of its successor may be the same
    void* memory = nullptr;
    if (cudaIpcOpenMemHandle(&memory, place.allocation, cudaIpcMemLazyEnablePeerAccess) != cudaSuccess) return nullptr;
    mapping = {place.identity, {static_cast<std::byte*>(memory), [](std::byte* p) { cudaIpcCloseMemHandle(p); }}};
  }
  return mapping.memory.get() + place.offset;
}

const PeerCopies::Addresses* PeerCopies::reach(Communicator& host, Call call, const Tensor& in, const Tensor& out) {
  const Key key{call, in.bytes(), identity_of(in.data), offset_of(in.data), identity_of(out.data), offset_of(out.data)};
  auto met = addresses_.find(key);
  if (met == addresses_.end()) {
    const std::vector<Place> all = exchange(host, place_of(in.data));
    Addresses found;
    for (int peer = 0; peer < size_; ++peer) {
      const Place& place = all[static_cast<std::size_t>(peer)];
      TRAINER_CHECK(place.number == addresses_.size(), "ranks {} and {} made calls in different orders", rank_, peer);
      const std::byte* const memory = peer == rank_ ? static_cast<const std::byte*>(in.data) : mapped(peer, place);
      if (memory != nullptr) found.push_back(memory);
    }
    cudaGetLastError();  // where one could not be mapped
    if (!agree(host, found.size() == all.size())) found.clear();
    met = addresses_.emplace(key, std::move(found)).first;
  }
  return met->second.empty() ? nullptr : &met->second;
}

void PeerCopies::post(const Context& ctx, Word word, int peer) const {
  // The write follows a fence: what was queued before is seen by whoever sees it.
  std::byte* const at = peer_words_[static_cast<std::size_t>(peer)] + offset_of_word(word, rank_);
  check(driver().write(static_cast<CUstream>(ctx.stream), address(at), round_, CU_STREAM_WRITE_VALUE_DEFAULT),
        "cuStreamWriteValue32");
}

void PeerCopies::await(const Context& ctx, Word word, int peer) const {
  const std::byte* const at = static_cast<const std::byte*>(words_.get()) + offset_of_word(word, peer);
  // Cyclic comparison: rounds may wrap around.
  check(driver().wait(static_cast<CUstream>(ctx.stream), address(at), round_, CU_STREAM_WAIT_VALUE_GEQ),
        "cuStreamWaitValue32");
}

void PeerCopies::begin_round(const Context& ctx) const {
  for (int shift = 1; shift < size_; ++shift) post(ctx, kReady, peer(-shift));
}

void PeerCopies::end_round(const Context& ctx) const {
  for (int shift = 1; shift < size_; ++shift) await(ctx, kRead, peer(-shift));
}

void PeerCopies::all_gather(const Context& ctx, const Addresses& sources, const Tensor& in, const Tensor& out) {
  const std::int64_t bytes = in.bytes();
  auto* const parts = static_cast<std::byte*>(out.data);
  ++round_;
  begin_round(ctx);
  if (parts + rank_ * bytes != in.data) copy(ctx, parts + rank_ * bytes, in.data, bytes);
  for (int shift = 1; shift < size_; ++shift) {
    const int source = peer(shift);
    await(ctx, kReady, source);
    copy(ctx, parts + source * bytes, sources[static_cast<std::size_t>(source)], bytes);
    post(ctx, kRead, source);
  }
  end_round(ctx);
}

void PeerCopies::reduce_scatter(const Context& ctx, const Addresses& sources, const Tensor& in, const Tensor& out,
                                bool accumulate) {
  if (scratch_ == nullptr) scratch_ = allocate(device_, kPeerScratchBytes, "the parts of peer sums");
  constexpr std::int64_t kAligned = 64;  // elements: each part begins where 16-byte accesses may
  const std::int64_t element = dtype_size(in.dtype), count = out.numel();
  const std::int64_t piece = std::min(count, kPeerScratchBytes / element / size_ / kAligned * kAligned);
  ++round_;
  begin_round(ctx);
  for (int shift = 1; shift < size_; ++shift) await(ctx, kReady, peer(shift));
  for (std::int64_t first = 0; first < count; first += piece) {
    const std::int64_t elements = std::min(piece, count - first);
    const Tensor parts = tensor_over(scratch_.get(), in.dtype, size_, elements);
    const std::int64_t offset = (rank_ * count + first) * element;
    for (int shift = 1; shift < size_; ++shift) {
      const int source = peer(shift);
      copy(ctx, parts.row_range(source, 1).data, sources[static_cast<std::size_t>(source)] + offset,
           elements * element);
    }
    ops::sum_parts(ctx, {.parts = parts,
                         .own = in.flat_range(rank_ * count + first, elements),
                         .own_part = rank_,
                         .accumulate = accumulate,
                         .out = out.flat_range(first, elements)});
  }
  for (int shift = 1; shift < size_; ++shift) post(ctx, kRead, peer(shift));
  end_round(ctx);
}

void PeerCopies::rotate(const Context& ctx, const Addresses& sources, const Tensor& in, const Tensor& out, int shift) {
  const int source = peer(shift), reader = peer(-shift);
  ++round_;
  post(ctx, kReady, reader);
  await(ctx, kReady, source);
  copy(ctx, out.data, sources[static_cast<std::size_t>(source)], in.bytes());
  post(ctx, kRead, source);
  await(ctx, kRead, reader);
}

void PeerCopies::abort() {
  // Behind every round that is waited for. There is nobody left to tell of an error.
  constexpr Round kBeyond = Round{1} << 30;
  const auto* const words = static_cast<const Round*>(words_.get());
  for (int word = 0; word < kWords * size_; ++word)
    driver().write(abort_stream_, address(words + word), round_ + kBeyond, CU_STREAM_WRITE_VALUE_DEFAULT);
}

}  // namespace trainer
