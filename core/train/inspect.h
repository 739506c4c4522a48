// What a run can be asked to print about itself, for tests and for bisecting: TRAINER_PRINT=sample_ids,state_hash.
#pragma once
#include <cstdint>
#include <string>

#include "core/train/engine.h"

namespace trainer {

struct PrintRequests {
  bool sample_ids = false;  // one line a micro-batch: the windows of the data that it holds
  bool state_hash = false;  // one line a step: state_hash() of this rank
  /// Of the environment variable TRAINER_PRINT. Throws Error(config) for an unknown word.
  static PrintRequests from_environment();
};

/// "sample_ids step 3 micro 0: 17 4 9 12"; steps are counted from 1, as in all that people read.
std::string sample_ids_line(const MicroBatch& micro_batch);

/// A hash of everything this rank holds that a checkpoint would restore: masters, moments, scaler. Equal states have
/// equal hashes.
std::uint64_t state_hash(Engine& engine);

}  // namespace trainer
