// CRC-32C (Castagnoli), the checksum of TensorBoard's record framing.
#pragma once
#include <cstdint>
#include <string_view>

namespace trainer {

/// CRC-32C of the bytes: reflected polynomial 0x82F63B78, start and final xor 0xFFFFFFFF (RFC 3720, appendix B.4).
std::uint32_t crc32c(std::string_view bytes);

/// The form stored in TFRecord files: rotated and offset, so that a checksum over data that holds checksums stays
/// meaningful.
std::uint32_t masked_crc32c(std::string_view bytes);

}  // namespace trainer
