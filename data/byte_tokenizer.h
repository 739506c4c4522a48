// The tokenizer that needs no file: bytes are tokens.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/runtime/check.h"

namespace trainer {

/// Ids 0 to 255 are bytes, 256 ends a text: model.vocab_size is 257. Any file is its own exact sequence of tokens,
/// whatever its encoding.
struct ByteTokenizer {
  static constexpr std::string_view name = "bytes";
  static constexpr std::int64_t vocab_size = 257;
  static constexpr std::int32_t end_of_text = 256;

  static std::vector<std::int32_t> encode(std::string_view text) {
    std::vector<std::int32_t> ids;
    ids.reserve(text.size());
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
    return ids;
  }

  /// The bytes; ends of text give none. Throws Error(data) for an id that is neither.
  static std::string decode(std::span<const std::int32_t> ids) {
    std::string text;
    for (const std::int32_t id : ids) {
      if (id < 0 || id >= vocab_size) fail(ExitCode::data, "token id {} is not one of the byte tokenizer's", id);
      if (id != end_of_text) text.push_back(static_cast<char>(id));
    }
    return text;
  }
};

}  // namespace trainer
