// How much memory a rank needs, known before anything is allocated: what `trainer plan` prints, and what is compared
// with the free memory of a GPU at start. The arena's part is exact, the reserves are estimates.
#pragma once
#include <cstdint>
#include <string>
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
  std::vector<Arena::Buffer> buffers;  // those on the device by name, largest first
  std::vector<MemoryReserve> reserves;
  std::int64_t parameters = 0;  // elements of the flat weight buffers of this rank, padding included

  /// Of the arena, on the device.
  std::int64_t arena_bytes() const;
  /// Arena and reserves, on the device.
  std::int64_t total_bytes() const;
  /// Pinned memory of the host.
  std::int64_t host_bytes() const { return classes[static_cast<std::size_t>(MemoryClass::host)]; }
};

/// Of this rank of `mesh`; a GPU adds its reserves, for a card of compute capability `sm` (0: not known, taken for a
/// new one). `config` is resolved. Communicates with nobody.
MemoryEstimate plan_memory(const Config& config, const Mesh& mesh, DeviceKind device, int sm = 0);
/// Of rank `rank` of the job that the configuration describes, on a GPU unless train.device is cpu.
MemoryEstimate plan_memory(const Config& config, int rank, int sm = 0);

/// The rank of the job that needs the most.
struct FullestRank {
  int rank = 0;
  MemoryEstimate estimate;
  bool all_equal = true;  // all ranks need the same
};
FullestRank fullest_rank(const Config& config, int sm = 0);

/// Classes, reserves, sum; what is beside it on the host.
std::string memory_table(const MemoryEstimate& estimate);
/// The three largest buffers and the setting that shrinks each.
std::string largest_table(const Config& config, const MemoryEstimate& estimate);
/// What a plan may be off, and what a change that is advised leaves free for that: 512 MiB.
inline constexpr std::int64_t kPlanTolerance = std::int64_t{512} << 20;
/// What was planned beside what is in use on the card, and whether the plan holds: to 3 % or kPlanTolerance.
std::string plan_check(const MemoryEstimate& estimate, std::int64_t used_bytes);
/// The setting that shrinks a buffer on the same ranks, as "section.key: value (reason)", and that validates; what else
/// helps where there is none (plan_advice.cc).
std::string shrink_advice(const Config& config, const Arena::Buffer& buffer);

/// Throws Error(memory) when a rank needs more than `free_bytes` of a card of which `used_bytes` are in use already:
/// by what this rank takes first, as far as they go. The message names the rank, both sizes, the biggest holders and
/// what to change.
void check_fits(const Config& config, const MemoryEstimate& estimate, int rank, std::int64_t free_bytes,
                std::int64_t used_bytes);

/// Memory of this machine, or of the container that the process is in.
std::int64_t host_ram_bytes();
/// What `ranks` ranks on one host of `ram_bytes` take of it together, and whether it has that; empty when they take
/// nothing.
std::string host_memory_note(const MemoryEstimate& estimate, int ranks, std::int64_t ram_bytes);
/// Throws Error(memory) when a host has less than its ranks take together: pinned memory cannot be swapped out.
void check_host_fits(const MemoryEstimate& estimate, int ranks, std::int64_t ram_bytes);

}  // namespace trainer
