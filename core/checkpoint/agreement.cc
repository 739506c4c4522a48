#include "core/checkpoint/agreement.h"

#include <new>

#include "parallel/host_exchange.h"

namespace trainer::checkpoint {
namespace {

std::optional<Error> error_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    return error;
  } catch (const std::bad_alloc&) {
    return Error(ExitCode::memory, "no host memory left for the buffers of a checkpoint");
  } catch (const std::exception& error) {
    return Error(ExitCode::checkpoint, error.what());
  }
  return std::nullopt;
}

}  // namespace

std::optional<RankError> first_error(Communicator& world, const std::function<void()>& work) {
  const std::optional<Error> own = error_of(work);
  const std::int64_t first = min_over_ranks(world, own ? world.rank() : world.size());
  if (first == world.size()) return std::nullopt;
  const int root = static_cast<int>(first);
  const bool mine = root == world.rank();
  std::int64_t code = mine ? static_cast<std::int64_t>(own->code()) : 0;
  world.broadcast({}, tensor_over(&code, Dtype::i64, 1, 1), root);
  const std::string text = broadcast_string(world, mine ? own->what() : "", root);
  return RankError{root, Error(static_cast<ExitCode>(code), text)};
}

void run_together(Communicator& world, const std::function<void()>& work) {
  const std::optional<RankError> failed = first_error(world, work);
  if (!failed) return;
  if (world.size() == 1) throw Error(failed->error);
  fail(failed->error.code(), "rank {}: {}", failed->rank, failed->error.what());
}

}  // namespace trainer::checkpoint
