#include "core/train/inspect.h"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <vector>

#include "core/runtime/environment.h"
#include "core/runtime/rng.h"
#include "core/train/checkpointing.h"

namespace trainer {

PrintRequests PrintRequests::from_environment() {
  PrintRequests requests;
  std::string_view rest = environment_variable("TRAINER_PRINT");
  while (!rest.empty()) {
    const std::string_view word = rest.substr(0, rest.find(','));
    if (word == "sample_ids")
      requests.sample_ids = true;
    else if (word == "state_hash")
      requests.state_hash = true;
    else
      fail(ExitCode::config, "TRAINER_PRINT: unknown word '{}' (sample_ids, state_hash)", word);
    rest.remove_prefix(std::min(rest.size(), word.size() + 1));
  }
  return requests;
}

std::string sample_ids_line(const MicroBatch& micro_batch) {
  std::string line = fmt::format("sample_ids step {} micro {}:", micro_batch.step + 1, micro_batch.micro);
  for (const std::int64_t id : micro_batch.sample_ids) line += fmt::format(" {}", id);
  return line;
}

std::uint64_t state_hash(Engine& engine) {
  std::uint64_t hash = 0;
  for (const Piece& piece : pieces_to_load(engine)) {
    hash = mix_key(hash, piece.tensor);
    constexpr std::int64_t kAtOnce = std::int64_t{1} << 22;
    for (std::int64_t first = 0; first < piece.box.numel(); first += kAtOnce) {
      const std::int64_t count = std::min(kAtOnce, piece.box.numel() - first);
      std::vector<char> bytes(static_cast<std::size_t>(count * dtype_size(piece.dtype)));
      piece.read(first, count, bytes.data());
      hash = mix_key(hash, std::string_view(bytes.data(), bytes.size()));
    }
  }
  const UpdateState& state = engine.state();
  std::uint64_t scale = 0;
  std::memcpy(&scale, &state.loss_scale, sizeof scale);
  for (const std::uint64_t value :
       {scale, static_cast<std::uint64_t>(state.growth_tracker), static_cast<std::uint64_t>(state.hysteresis_left),
        static_cast<std::uint64_t>(state.updates)})
    hash = mix_key(hash, value);
  return hash;
}

}  // namespace trainer
