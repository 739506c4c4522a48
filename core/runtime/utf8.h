// Whether bytes are text.
#pragma once
#include <cstddef>
#include <string_view>

namespace trainer {

/// Length of the UTF-8 sequence at the start of `text`, which is not empty; 0 when it is not valid UTF-8 (RFC 3629,
/// table of section 4).
inline std::size_t utf8_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return 1;
  const std::size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || text.size() < length) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  const unsigned char second = byte(1);
  const bool overlong = (first == 0xe0 && second < 0xa0) || (first == 0xf0 && second < 0x90);
  const bool out_of_range =
      (first == 0xed && second > 0x9f) || (first == 0xf4 && second > 0x8f);  // surrogates, > 10FFFF
  return overlong || out_of_range ? 0 : length;
}

}  // namespace trainer
