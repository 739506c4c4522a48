// Hands out the micro-batches of one data-parallel rank, prepared ahead by a thread of its own.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "data/sampler.h"
#include "data/token_shards.h"

namespace trainer {

/// B samples of T tokens, one behind the other.
struct MicroBatch {
  std::vector<std::int32_t> inputs;           // [B * T]
  std::vector<std::int32_t> targets;          // [B * T], kIgnoredTarget where masked
  std::vector<std::int32_t> positions;        // [B * T], counted from the start of the sequence
  std::vector<std::int32_t> sequence_starts;  // [S + 1]: 0, ..., B * T. Samples, or documents within samples
  std::vector<std::int64_t> sample_ids;       // [B], windows of the dataset; kNoWindow: a row without targets
  std::int64_t step = 0;
  std::int64_t micro = 0;       // 0 .. accumulation - 1
  std::int64_t first_slot = 0;  // slot of the first sample in the global batch; the others follow
};

/// How the global batch is dealt. Slot s of step n is sample n x global_batch_size + s of the run; rank r computes, as
/// its micro-batch m, slots (r x accumulation + m) x micro_batch_size and the following. The samples of a step are thus
/// the same in every layout.
struct LoaderShape {
  std::int64_t seq_length = 0;        // T
  std::int64_t micro_batch_size = 1;  // B
  std::int64_t global_batch_size = 1;
  int dp_rank = 0;
  int dp_size = 1;
  std::int64_t prefetch = 4;  // micro-batches prepared ahead

  /// Micro-batches of a step on one rank.
  std::int64_t accumulation() const { return global_batch_size / (micro_batch_size * dp_size); }
};

class Loader {
 public:
  /// Starts at micro-batch 0 of `first_step`: a resume is a new Loader. The dataset must outlive it. The global batch
  /// must divide evenly. Where the dataset knows its documents, those within a sample are sequences of their own; what
  /// a sample holds of one that begins before it is a sequence, too.
  Loader(const TokenDataset& dataset, const Sampler& sampler, const LoaderShape& shape, std::int64_t first_step);

  /// The next micro-batch, valid until the following call. Throws what reading it threw (a damaged shard: Error(data)
  /// naming file and token), once all micro-batches before it were handed out.
  const MicroBatch& next();
  /// Time that next() has spent waiting, in all.
  double wait_seconds() const { return wait_seconds_; }

 private:
  void produce(const std::stop_token& stop);
  void fill(MicroBatch& batch, std::int64_t index);
  void fill_row(std::int64_t window, std::int32_t* inputs, std::int32_t* targets);

  const TokenDataset& dataset_;
  const Sampler sampler_;
  const LoaderShape shape_;
  const std::int64_t first_step_;
  double wait_seconds_ = 0;
  std::vector<std::uint8_t> mask_;  // [T], scratch of the thread

  // A ring of prefetch + 1 micro-batches, so that hardly anything is allocated while training. The caller holds the one
  // last taken; the thread fills those that are given back. Counters are of micro-batches since the start.
  std::vector<MicroBatch> ring_;
  std::mutex mutex_;  // guards what follows
  std::condition_variable_any changed_;
  std::size_t produced_ = 0;
  std::size_t taken_ = 0;
  std::size_t given_back_ = 0;
  std::exception_ptr error_;
  std::jthread thread_;  // last: stopped and joined before anything it uses goes
};

}  // namespace trainer
