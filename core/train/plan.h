// How much memory a rank needs, known before anything is allocated: what `trainer plan` prints, and what is compared
// with the free memory of a GPU at start. The arena's part is exact, the reserves are estimates.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/config/config.h"
#include "core/runtime/arena.h"
#include "core/runtime/device.h"
#include "parallel/mesh.h"

namespace trainer {

/// Memory of a GPU that is not the arena's.
struct MemoryReserve {
  std::string name;
  std::int64_t bytes = 0;
  bool taken_first = false;  // may be taken, or a part of it, before the arena: NCCL fetches buffers when first used
};

struct MemoryEstimate {
  MemoryPlan classes{};                // bytes of the arena, exact
  std::vector<Arena::Buffer> buffers;  // the same by name, largest first
  std::vector<MemoryReserve> reserves;
  std::int64_t parameters = 0;  // elements of the flat weight buffers of this rank, padding included

  std::int64_t arena_bytes() const;
  /// Arena and reserves.
  std::int64_t total_bytes() const;
};

/// Of this rank of `mesh`; a GPU adds its reserves. `config` is resolved. Communicates with nobody.
MemoryEstimate plan_memory(const Config& config, const Mesh& mesh, DeviceKind device);
/// Of rank `rank` of the job that the configuration describes, on a GPU unless train.device is cpu.
MemoryEstimate plan_memory(const Config& config, int rank);

/// Classes, reserves, sum.
std::string memory_table(const MemoryEstimate& estimate);
/// The three largest buffers and the setting that shrinks each.
std::string largest_table(const Config& config, const MemoryEstimate& estimate);
/// What was planned beside what is in use on the card, and whether the plan holds: to 3 % or 512 MiB.
std::string plan_check(const MemoryEstimate& estimate, std::int64_t used_bytes);
/// The setting that shrinks a buffer, as "section.key: value (reason)".
std::string shrink_advice(const Config& config, const Arena::Buffer& buffer);

/// Throws Error(memory) when a rank needs more than `free_bytes` of a card of which `used_bytes` are in use already:
/// by what this rank takes first, as far as they go. The message names the rank, both sizes, the biggest holders and
/// what to change.
void check_fits(const Config& config, const MemoryEstimate& estimate, int rank, std::int64_t free_bytes,
                std::int64_t used_bytes);

/// Bytes that a named card gives to one process: "h200", "a100-80", or a number of GiB. Throws Error(config) for
/// others, naming those that are known.
std::int64_t card_bytes(std::string_view card);

}  // namespace trainer
