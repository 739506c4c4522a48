// XXH3-128: finds damage by accident, at the speed of memory. It is no defence against intent.
#pragma once
#include <cstddef>
#include <string>

namespace trainer::checkpoint {

/// 32 lower-case hexadecimal digits (the canonical, big-endian form).
std::string checksum_hex(const void* data, std::size_t bytes);

}  // namespace trainer::checkpoint
