#include "data/loader.h"

#include <algorithm>
#include <chrono>
#include <numeric>

#include "core/runtime/check.h"
#include "core/runtime/targets.h"

namespace trainer {

Loader::Loader(const TokenDataset& dataset, const Sampler& sampler, const LoaderShape& shape, std::int64_t first_step)
    : dataset_(dataset), sampler_(sampler), shape_(shape), first_step_(first_step) {
  const std::int64_t t = shape.seq_length, b = shape.micro_batch_size;
  TRAINER_CHECK(t >= 1 && b >= 1 && shape.prefetch >= 1 && first_step >= 0,
                "seq_length {}, micro_batch_size {}, prefetch {}, first step {}", t, b, shape.prefetch, first_step);
  TRAINER_CHECK(shape.dp_rank >= 0 && shape.dp_rank < shape.dp_size, "data-parallel rank {} of {}", shape.dp_rank,
                shape.dp_size);
  TRAINER_CHECK(shape.global_batch_size >= 1 && shape.global_batch_size % (b * shape.dp_size) == 0,
                "global_batch_size {} over {} ranks of micro_batch_size {}", shape.global_batch_size, shape.dp_size, b);
  TRAINER_CHECK(sampler.windows() <= num_windows(dataset.num_tokens(), t), "{} windows of {} tokens in {} tokens",
                sampler.windows(), t, dataset.num_tokens());

  MicroBatch blank;
  blank.inputs.resize(static_cast<std::size_t>(b * t));
  blank.targets.resize(blank.inputs.size());
  blank.positions.resize(blank.inputs.size());
  blank.sample_ids.resize(static_cast<std::size_t>(b));
  ring_.assign(static_cast<std::size_t>(shape.prefetch + 1), blank);
  mask_.resize(static_cast<std::size_t>(t));

  thread_ = std::jthread([this](const std::stop_token& stop) { produce(stop); });
}

const MicroBatch& Loader::next() {
  std::unique_lock lock(mutex_);
  given_back_ = taken_;
  changed_.notify_all();
  const auto start = std::chrono::steady_clock::now();
  changed_.wait(lock, [this] { return produced_ > taken_ || error_ != nullptr; });
  wait_seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (produced_ == taken_) std::rethrow_exception(error_);
  return ring_[taken_++ % ring_.size()];
}

void Loader::produce(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  while (changed_.wait(lock, stop, [this] { return produced_ - given_back_ < ring_.size(); }) &&
         !stop.stop_requested()) {
    MicroBatch& batch = ring_[produced_ % ring_.size()];
    const auto index = static_cast<std::int64_t>(produced_);
    std::exception_ptr error;
    lock.unlock();
    try {
      fill(batch, index);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    error_ = error;
    if (error == nullptr) ++produced_;
    changed_.notify_all();
    if (error != nullptr) return;
  }
}

void Loader::fill(MicroBatch& batch, std::int64_t index) {
  const std::int64_t t = shape_.seq_length, b = shape_.micro_batch_size, accumulation = shape_.accumulation();
  batch.step = first_step_ + index / accumulation;
  batch.micro = index % accumulation;
  batch.first_slot = (shape_.dp_rank * accumulation + batch.micro) * b;
  std::vector<std::int32_t>& starts = batch.sequence_starts;
  starts.clear();
  for (std::int64_t row = 0; row < b; ++row) {
    const std::int64_t window = sampler_.window(batch.step * shape_.global_batch_size + batch.first_slot + row);
    batch.sample_ids[static_cast<std::size_t>(row)] = window;
    fill_row(window, batch.inputs.data() + row * t, batch.targets.data() + row * t);
    starts.push_back(static_cast<std::int32_t>(row * t));
    if (window != kNoWindow) dataset_.document_starts(window * t + 1, t - 1, row * t + 1, starts);
  }
  starts.push_back(static_cast<std::int32_t>(b * t));
  for (std::size_t s = 0; s + 1 < starts.size(); ++s)
    std::iota(batch.positions.begin() + starts[s], batch.positions.begin() + starts[s + 1], 0);
}

void Loader::fill_row(std::int64_t window, std::int32_t* inputs, std::int32_t* targets) {
  const std::int64_t t = shape_.seq_length;
  if (window == kNoWindow) {
    std::fill_n(inputs, t, 0);
    std::fill_n(targets, t, kIgnoredTarget);
    return;
  }
  dataset_.read(window * t, t, inputs, nullptr);
  dataset_.read(window * t + 1, t, targets, mask_.data());
  for (std::int64_t i = 0; i < t; ++i)
    if (mask_[static_cast<std::size_t>(i)] == 0) targets[i] = kIgnoredTarget;
}

}  // namespace trainer
