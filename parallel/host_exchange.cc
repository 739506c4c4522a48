#include "parallel/host_exchange.h"

#include <algorithm>
#include <cstring>

namespace trainer {
namespace {

Context host() {
  return {};
}

std::int64_t reduce(Communicator& group, std::int64_t value, ReduceOp op) {
  group.all_reduce(host(), tensor_over(&value, Dtype::i64, 1, 1), op);
  return value;
}

}  // namespace

std::string broadcast_string(Communicator& group, const std::string& text, int root) {
  auto length = static_cast<std::int64_t>(text.size());
  group.broadcast(host(), tensor_over(&length, Dtype::i64, 1, 1), root);
  std::string result = group.rank() == root ? text : std::string(static_cast<std::size_t>(length), '\0');
  group.broadcast(host(), tensor_over(result.data(), Dtype::u8, 1, length), root);
  return result;
}

std::vector<std::string> gather_strings(Communicator& group, const std::string& text) {
  const auto ranks = static_cast<std::size_t>(group.size());
  auto length = static_cast<std::int64_t>(text.size());
  std::vector<std::int64_t> lengths(ranks);
  group.all_gather(host(), tensor_over(&length, Dtype::i64, 1, 1),
                   tensor_over(lengths.data(), Dtype::i64, group.size(), 1));
  const std::int64_t longest = *std::max_element(lengths.begin(), lengths.end());
  std::string padded = text;
  padded.resize(static_cast<std::size_t>(longest));
  std::vector<char> all(ranks * padded.size());
  group.all_gather(host(), tensor_over(padded.data(), Dtype::u8, 1, longest),
                   tensor_over(all.data(), Dtype::u8, group.size(), longest));
  std::vector<std::string> texts;
  for (std::size_t r = 0; r < ranks; ++r)
    texts.emplace_back(all.data() + r * padded.size(), static_cast<std::size_t>(lengths[r]));
  return texts;
}

bool agree(Communicator& group, bool yes) {
  return min_over_ranks(group, yes ? 1 : 0) == 1;
}

std::int64_t sum_over_ranks(Communicator& group, std::int64_t value) {
  return reduce(group, value, ReduceOp::sum);
}

std::int64_t max_over_ranks(Communicator& group, std::int64_t value) {
  return reduce(group, value, ReduceOp::max);
}

std::int64_t min_over_ranks(Communicator& group, std::int64_t value) {
  return reduce(group, value, ReduceOp::min);
}

}  // namespace trainer
