// Copies between the GPUs of one host by their copy engines. NCCL's kernels take SMs from the GEMMs beside them, and
// wait for GEMMs that hold every SM to their end; copy engines do neither. By words in device memory, which streams
// write and wait for, ranks tell each other when a tensor may be read and when it has been read: the host waits for
// nothing. Included by nccl_*.cc only.
#pragma once
#include <cuda_runtime_api.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "parallel/communicator.h"

namespace trainer {

/// Of the ranks of one group. All take the same calls in the same order, one after another even when they are queued on
/// different streams.
class PeerCopies {
 public:
  /// Collective. Null on all ranks when they are not on one host or cannot reach each other's memory.
  static std::unique_ptr<PeerCopies> connect(Communicator& host, Device device);
  ~PeerCopies();
  PeerCopies(const PeerCopies&) = delete;
  PeerCopies& operator=(const PeerCopies&) = delete;

  /// Whether reduce_scatter takes tensors of this type: those of training.
  static bool adds(Dtype dtype) { return is_floating(dtype) && dtype != Dtype::f64; }

  /// What the ranks pass as `in` of a call, where this rank can read it: an address for each of them.
  using Addresses = std::vector<const std::byte*>;
  enum class Call : std::uint8_t { all_gather, reduce_scatter, rotate };

  /// Before each of the calls below. Null on all ranks where one cannot read another's tensor. Collective: the first
  /// time that ranks make a call they exchange addresses through `host`, a communicator with the same ranks. Each may
  /// pass another part of its memory, so that one may have met its tensor before and another not: only the whole call
  /// is new to all or to none. Memory below 2 MiB is not reached: CUDA shares the blocks that it cuts such pieces from.
  const Addresses* reach(Communicator& host, Call call, const Tensor& in, const Tensor& out);

  /// As in Communicator. The sums are added in the order of the ranks, in float32 for 16-bit types, and rounded once.
  void all_gather(const Context& ctx, const Addresses& sources, const Tensor& in, const Tensor& out);
  /// out += the sum with `accumulate`. `out` may be of the type of sums.
  void reduce_scatter(const Context& ctx, const Addresses& sources, const Tensor& in, const Tensor& out,
                      bool accumulate);
  void rotate(const Context& ctx, const Addresses& sources, const Tensor& in, const Tensor& out, int shift);

  /// Ends all waiting; what was copied since is undefined. Any thread.
  void abort();

 private:
  /// The call, its bytes, and allocation and offset of both tensors.
  using Key = std::tuple<Call, std::int64_t, std::uint64_t, std::uint64_t, std::uint64_t, std::uint64_t>;
  using Round = std::uint32_t;  // counts the calls; may wrap around
  /// What a rank tells a peer: its tensor may be read; the peer's has been read.
  enum Word { kReady, kRead, kWords };
  struct Place;
  struct Mapping {
    std::uint64_t identity = 0;
    std::shared_ptr<std::byte> memory;
  };

  PeerCopies(Communicator& host, Device device);
  int peer(int shift) const { return (rank_ + shift + size_) % size_; }
  /// Bytes from the start of words_ to the word that `writer` writes.
  std::size_t offset_of_word(Word word, int writer) const {
    return sizeof(Round) * static_cast<std::size_t>(word * size_ + writer);
  }
  /// Maps the words of the others; false where that is not possible.
  bool map_words(Communicator& host);
  Place place_of(const void* data) const;
  /// A tensor of another process; null where its memory cannot be reached.
  std::byte* mapped(int peer, const Place& place);

  /// Queued: peer's word `word` of this rank becomes round_, after all that is queued before.
  void post(const Context& ctx, Word word, int peer) const;
  /// Queued: what follows waits until this rank's word `word` of `peer` has become round_.
  void await(const Context& ctx, Word word, int peer) const;
  void begin_round(const Context& ctx) const;
  void end_round(const Context& ctx) const;

  int rank_, size_;
  Device device_;
  std::shared_ptr<void> words_;         // [kWords, size] Round, written by the others
  std::shared_ptr<void> scratch_;       // kPeerScratchBytes, for the parts of a sum; null before the first
  std::vector<std::byte*> peer_words_;  // of each rank; own: words_
  std::atomic<Round> round_ = 0;
  std::map<std::pair<int, std::uint64_t>, Mapping> mappings_;  // by rank and the address there
  std::map<Key, Addresses> addresses_;                         // empty: cannot be reached
  cudaStream_t abort_stream_ = nullptr;
};

}  // namespace trainer
