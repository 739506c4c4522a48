// An engine on known data, and its state as whole tensors: what the tests of training compare.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/train/engine.h"

namespace trainer::test {

/// The configuration of a golden family with overrides ("section.key=value"), resolved for `world_size` ranks.
Config family_config(const std::string& family, const std::vector<std::string>& sets, int world_size);

/// Sample `slot` of step `step`: T random tokens and their successors; a part of the targets is masked, a different one
/// in each slot.
struct Sample {
  std::vector<std::int32_t> ids;          // [T]
  std::vector<std::int32_t> targets;      // [T], kIgnoredTarget where masked
  std::vector<std::int32_t> documents{};  // where documents begin, but for 0
};
Sample synthetic_sample(std::int64_t step, std::int64_t slot, std::int64_t seq_length, std::int64_t vocab_size);
/// About one in four tokens, others in each slot.
std::vector<std::int32_t> synthetic_documents(std::int64_t step, std::int64_t slot, std::int64_t seq_length);

/// Deals samples as the loader does.
class SampleSource {
 public:
  using Maker = std::function<Sample(std::int64_t step, std::int64_t slot)>;
  SampleSource(Engine& engine, Maker maker);
  /// The synthetic samples above, with documents where the configuration has attention within them.
  explicit SampleSource(Engine& engine);
  /// The next micro-batch; the source starts at step 0.
  const MicroBatch& next();
  MicroBatchSource source() {
    return [this]() -> const MicroBatch& { return next(); };
  }
  /// Starts again at `step`.
  void seek(std::int64_t step);

 private:
  LoaderShape shape_;
  Maker maker_;
  std::int64_t index_ = 0;
  MicroBatch batch_;
};

/// The logits of a micro-batch of an engine with one rank, without the padding of the vocabulary: [N, vocab_size].
std::vector<double> logits_of(Engine& engine, const MicroBatch& micro_batch);

/// Sets all weights to golden_weight(name, index).
void load_golden_weights(Engine& engine);

/// Values of this rank's part of a tensor, and which elements of the global tensor they are.
struct OwnedValues {
  std::string tensor;
  std::vector<std::int64_t> indices;  // row-major in the global tensor
  std::vector<double> values;
};
/// Masters and moments. Over all ranks every element is there once, unless `copies`: then all that this rank holds.
std::vector<OwnedValues> owned_state(Engine& engine, bool copies = false);
/// Gradients of the last compute_gradients(), as stored; every element once over all ranks.
std::vector<OwnedValues> owned_gradients(Engine& engine);

/// Whole tensors by name, of an engine with one rank.
using WholeTensors = std::map<std::string, std::vector<double>>;
WholeTensors whole(const std::vector<OwnedValues>& owned);

/// Worst tensor of norm(a - b) / (relative norm(b) + absolute sqrt(n)): at most 1 passes. Collective over the engine's
/// world; the same on every rank. NaN counts as infinitely bad.
struct Worst {
  double ratio = 0.0;
  std::string tensor;
};
Worst compare(Engine& engine, const std::vector<OwnedValues>& owned, const WholeTensors& reference, double relative,
              double absolute);

}  // namespace trainer::test
