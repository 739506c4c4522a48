#include "core/checkpoint/agreement.h"

#include <algorithm>
#include <new>

namespace trainer::checkpoint {
namespace {

Tensor one(std::int64_t& value) {
  return tensor_over(&value, Dtype::i64, 1, 1);
}

Tensor bytes_of(std::string& text) {
  return tensor_over(text.data(), Dtype::u8, 1, static_cast<std::int64_t>(text.size()));
}

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
  std::int64_t first = own ? world.rank() : world.size();
  world.all_reduce({}, one(first), ReduceOp::min);
  if (first == world.size()) return std::nullopt;
  const int root = static_cast<int>(first);
  const bool mine = root == world.rank();
  std::int64_t code = mine ? static_cast<std::int64_t>(own->code()) : 0;
  std::string text = mine ? own->what() : "";
  world.broadcast({}, one(code), root);
  broadcast_text(world, text, root);
  return RankError{root, Error(static_cast<ExitCode>(code), text)};
}

void run_together(Communicator& world, const std::function<void()>& work) {
  const std::optional<RankError> failed = first_error(world, work);
  if (!failed) return;
  if (world.size() == 1) throw Error(failed->error);
  fail(failed->error.code(), "rank {}: {}", failed->rank, failed->error.what());
}

void broadcast_text(Communicator& world, std::string& text, int root) {
  auto length = static_cast<std::int64_t>(text.size());
  world.broadcast({}, one(length), root);
  text.resize(static_cast<std::size_t>(length));
  if (length > 0) world.broadcast({}, bytes_of(text), root);
}

std::vector<std::string> gather_texts(Communicator& world, const std::string& text) {
  const auto ranks = static_cast<std::size_t>(world.size());
  std::vector<std::int64_t> lengths(ranks);
  auto length = static_cast<std::int64_t>(text.size());
  world.all_gather({}, one(length), tensor_over(lengths.data(), Dtype::i64, 1, world.size()));
  // Counts must be equal on all ranks, so every text is padded to the longest.
  const auto longest = static_cast<std::size_t>(*std::max_element(lengths.begin(), lengths.end()));
  std::vector<std::string> texts(ranks);
  if (longest == 0) return texts;
  std::string padded = text, all(longest * ranks, '\0');
  padded.resize(longest);
  world.all_gather({}, bytes_of(padded), bytes_of(all));
  for (std::size_t rank = 0; rank < ranks; ++rank)
    texts[rank] = all.substr(rank * longest, static_cast<std::size_t>(lengths[rank]));
  return texts;
}

std::int64_t sum_over_ranks(Communicator& world, std::int64_t value) {
  world.all_reduce({}, one(value), ReduceOp::sum);
  return value;
}

}  // namespace trainer::checkpoint
