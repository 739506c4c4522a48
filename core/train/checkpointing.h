// Between the live state of a run and the checkpoint format: which boxes of which global tensors this rank saves and
// wants.
#pragma once
#include <string>

#include "core/checkpoint/load.h"
#include "core/checkpoint/save.h"
#include "core/train/engine.h"

namespace trainer {

/// Where a run is, besides its tensors.
struct RunState {
  std::int64_t step = 0;    // completed steps
  std::int64_t tokens = 0;  // processed by them
  UpdateState update;
  // What the order of samples follows from; a resume with other values would repeat or leave out samples.
  std::int64_t seed = 0;
  std::int64_t seq_length = 0;
  std::int64_t global_batch_size = 0;
  std::int64_t train_windows = 0;
  std::string train_sample;  // token_sample() of what they hold; empty: not known
  std::string gemm_choices;  // kernels/gemm_choices.h; empty on the CPU
};
std::string to_json(const RunState& state);
/// Throws Error(checkpoint) when a field is missing or of another type.
RunState run_state_from_json(const std::string& text);

/// True for the state of a run whose last step changed the weights. Amid skipped steps a checkpoint holds the weights
/// from before them, and a loss scale on its way to the floor.
bool is_after_an_update(const std::string& state_json);

/// Throws Error(config) naming both values when `saved` and `now` would order the samples differently.
void check_same_data(const RunState& saved, const RunState& now);

/// The boxes that this rank writes: over all ranks, every element of every tensor exactly once. Replicas share the
/// work.
std::vector<Piece> pieces_to_save(Engine& engine);
/// Everything that this rank holds: its ZeRO shards of masters and moments. After loading, finish_load() makes the
/// weights whole.
std::vector<Piece> pieces_to_load(Engine& engine);
void finish_load(Engine& engine);

}  // namespace trainer
