#include "core/checkpoint/checksum.h"

#include <fmt/format.h>
#include <xxhash.h>

namespace trainer::checkpoint {

std::string checksum_hex(const void* data, std::size_t bytes) {
  const XXH128_hash_t hash = XXH3_128bits(data, bytes);
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

}  // namespace trainer::checkpoint
