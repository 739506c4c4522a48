// Which algorithm each GEMM runs: found by timing, the same on every rank, kept with the run and in its checkpoints.
// The library's own first guess is up to 25 % slower on narrow shapes. On the CPU there is nothing to choose.
#pragma once
#include <cstdint>
#include <string>

#include "core/runtime/context.h"

namespace trainer {

enum class GemmTuning : std::uint8_t {
  off,        // a shape without a choice runs the library's first guess
  time,       // a shape without a choice is timed on its own operands, whose output must not matter yet
  keep_pace,  // timed as well, but not chosen: for ranks that would otherwise wait for the one that chooses
};
void set_gemm_tuning(const Context& ctx, GemmTuning tuning);

/// All choices as text, one a line: "<card> <library version> <shape> <algorithm>". Reads back with use_gemm_choices.
std::string gemm_choices(const Context& ctx);

/// Takes over the choices of `text` that were made for this card and library version; others are passed over. Returns
/// how many were taken.
std::int64_t use_gemm_choices(const Context& ctx, const std::string& text);

}  // namespace trainer
