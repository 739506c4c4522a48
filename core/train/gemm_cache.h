// GEMM choices between runs: a text file on this machine, so that a second start need not time anything and computes
// the same bits.
#pragma once
#include <string>

#include "core/train/engine.h"

namespace trainer {

/// $TRAINER_CACHE_DIR/gemm_choices.txt, or below $XDG_CACHE_HOME/trainer or ~/.cache/trainer; empty when none of these
/// is set.
std::string gemm_cache_path();

/// The whole file; empty when there is none.
std::string read_gemm_cache(const std::string& path);

/// Adds the lines of `choices` that the file does not have; replaces the file in one step. False when it cannot be
/// written, which costs the next start some seconds and nothing else.
bool add_to_gemm_cache(const std::string& path, const std::string& choices);

/// engine.warm_up(batch) on every rank with what rank 0 finds in the file; rank 0 adds to it what had to be timed.
/// Choices that the engine has already, a checkpoint's, win. Returns a warning on rank 0 when the file cannot be
/// written, nothing otherwise.
[[nodiscard]] std::string warm_up_remembering(Engine& engine, const MicroBatch& batch);

}  // namespace trainer
