// Ranks that stay together: errors that all ranks learn of.
#pragma once
#include <functional>
#include <optional>

#include "core/runtime/check.h"
#include "parallel/communicator.h"

namespace trainer::checkpoint {

struct RankError {
  int rank;
  Error error;
};
/// Collective. Runs `work`, which holds no collectives, on every rank and waits for all: the error of the first rank
/// that had one, the same on all ranks, or nothing.
std::optional<RankError> first_error(Communicator& world, const std::function<void()>& work);
/// As first_error, and throws it on all ranks, with the number of the rank where there are several.
void run_together(Communicator& world, const std::function<void()>& work);

}  // namespace trainer::checkpoint
