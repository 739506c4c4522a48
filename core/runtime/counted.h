// Numbers in messages.
#pragma once
#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace trainer {

/// "1 rank", "2 ranks", "3 micro-batches".
inline std::string counted(std::int64_t count, std::string_view thing) {
  return fmt::format("{} {}{}", count, thing, count == 1 ? "" : thing.ends_with("ch") ? "es" : "s");
}

}  // namespace trainer
