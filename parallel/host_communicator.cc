#include "parallel/host_communicator.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "core/runtime/device.h"
#include "core/runtime/divide.h"
#include "parallel/collective_exchange.h"
#include "parallel/reduce.h"

namespace trainer {
namespace {

class HostCommunicator final : public Communicator {
 public:
  HostCommunicator(std::unique_ptr<Transport> transport, const std::string& name, std::shared_ptr<JobRanks> job,
                   const CommunicatorOptions& options)
      : name_(name),
        job_(std::move(job)),
        options_(options),
        exchange_(std::move(transport), name, job_, options),
        pieces_(static_cast<std::size_t>(exchange_.size())),
        sources_(pieces_.size()) {}

  int rank() const override { return exchange_.rank(); }
  int size() const override { return exchange_.size(); }
  const std::string& name() const override { return name_; }

  void all_reduce(const Context& ctx, const Tensor& data, ReduceOp op) override;
  void reduce_scatter(const Context& ctx, const Tensor& in, const Tensor& out) override;
  void all_gather(const Context& ctx, const Tensor& in, const Tensor& out) override;
  void rotate(const Context& ctx, const Tensor& in, const Tensor& out, int shift) override;
  void broadcast(const Context& ctx, const Tensor& data, int root) override;
  void barrier() override;
  std::unique_ptr<Communicator> split(int color, int key, const std::string& name) override;

 private:
  /// A range of the elements that one rank reduces.
  struct Chunk {
    std::int64_t first = 0, count = 0;
  };

  std::int64_t enter(std::int64_t count) const { return enter_collective(options_.fault, count); }
  void announce(const Collective& collective, std::int64_t bytes);
  void clear_pieces() { std::fill(pieces_.begin(), pieces_.end(), Piece{}); }
  char* scratch(int r) { return scratch_.data() + scratch_slot_ * r; }
  void reserve_scratch(std::int64_t bytes_per_rank);
  void reduce(Dtype dtype, ReduceOp op, std::int64_t count, char* own, char* out);
  void all_reduce_at_once(const Collective& collective, const Tensor& data);
  void all_reduce_segment(const Collective& collective, char* data, std::int64_t count);

  std::string name_;
  std::shared_ptr<JobRanks> job_;
  CommunicatorOptions options_;
  CollectiveExchange exchange_;
  std::vector<Piece> pieces_;         // [size]
  std::vector<const void*> sources_;  // [size]
  std::vector<char> scratch_;         // size x scratch_slot_ bytes: what the other ranks add
  std::int64_t scratch_slot_ = 0;
};

void HostCommunicator::announce(const Collective& collective, std::int64_t bytes) {
  exchange_.announce(collective, bytes, pieces_);
}

void HostCommunicator::reserve_scratch(std::int64_t bytes_per_rank) {
  constexpr std::int64_t kAlignment = 64;
  scratch_slot_ = round_up(bytes_per_rank, kAlignment);
  const auto needed = static_cast<std::size_t>(scratch_slot_ * size());
  if (scratch_.size() < needed) scratch_.resize(needed);
}

void HostCommunicator::reduce(Dtype dtype, ReduceOp op, std::int64_t count, char* own, char* out) {
  for (int r = 0; r < size(); ++r) sources_[static_cast<std::size_t>(r)] = r == rank() ? own : scratch(r);
  reduce_in_order(dtype, op, sources_.data(), size(), count, out);
}

void HostCommunicator::all_reduce(const Context& /*ctx*/, const Tensor& data, ReduceOp op) {
  check_all_reduce(data);
  const std::int64_t element = dtype_size(data.dtype);
  const Collective collective{
      .count = enter(data.numel()), .kind = CollectiveKind::all_reduce, .dtype = data.dtype, .op = op};
  if (collective.count * element <= CollectiveExchange::kInlineBytes) {
    all_reduce_at_once(collective, data);
  } else {
    clear_pieces();
    announce(collective, data.bytes());
    const std::int64_t segment = std::max<std::int64_t>(options_.piece_bytes / element, 1) * size();
    for (std::int64_t first = 0; first < collective.count; first += segment)
      all_reduce_segment(collective, static_cast<char*>(data.data) + first * element,
                         std::min(segment, collective.count - first));
  }
  exchange_.finish();
}

/// Few elements: every rank sends all of them to all and reduces them itself, in one exchange instead of two.
void HostCommunicator::all_reduce_at_once(const Collective& collective, const Tensor& data) {
  const std::int64_t bytes = collective.count * dtype_size(collective.dtype);
  char* own = static_cast<char*>(data.data);
  reserve_scratch(bytes);
  for (int r = 0; r < size(); ++r) pieces_[static_cast<std::size_t>(r)] = {own, bytes, scratch(r), bytes};
  announce(collective, data.bytes());
  reduce(collective.dtype, collective.op, collective.count, own, own);
}

/// A reduce-scatter in which rank r reduces chunk r, and an all-gather of the chunks.
void HostCommunicator::all_reduce_segment(const Collective& collective, char* data, std::int64_t count) {
  const std::int64_t element = dtype_size(collective.dtype);
  const auto chunk = [&](int r) {
    const std::int64_t first = count * r / size();
    return Chunk{first, count * (r + 1) / size() - first};
  };
  const Chunk mine = chunk(rank());
  char* own = data + mine.first * element;
  reserve_scratch(mine.count * element);
  for (int r = 0; r < size(); ++r)
    pieces_[static_cast<std::size_t>(r)] = {data + chunk(r).first * element, chunk(r).count * element, scratch(r),
                                            mine.count * element};
  exchange_.transfer(pieces_);
  reduce(collective.dtype, collective.op, mine.count, own, own);
  for (int r = 0; r < size(); ++r)
    pieces_[static_cast<std::size_t>(r)] = {own, mine.count * element, data + chunk(r).first * element,
                                            chunk(r).count * element};
  exchange_.transfer(pieces_);
}

void HostCommunicator::reduce_scatter(const Context& /*ctx*/, const Tensor& in, const Tensor& out) {
  check_reduce_scatter(*this, in, out);
  const std::int64_t element = dtype_size(in.dtype);
  const std::int64_t part_bytes = out.numel() * element;
  const Collective collective{
      .count = enter(out.numel()), .kind = CollectiveKind::reduce_scatter, .dtype = in.dtype, .op = ReduceOp::sum};
  char* source = static_cast<char*>(in.data);
  char* target = static_cast<char*>(out.data);
  const std::int64_t segment =
      std::max<std::int64_t>(std::min(options_.piece_bytes, std::max(out.bytes(), element)) / element, 1);
  reserve_scratch(segment * element);
  const auto set_pieces = [&](std::int64_t first, std::int64_t count) {
    for (int r = 0; r < size(); ++r)
      pieces_[static_cast<std::size_t>(r)] = {source + r * part_bytes + first * element, count * element, scratch(r),
                                              count * element};
  };
  const bool inline_payload =
      collective.count * element <= CollectiveExchange::kInlineBytes && collective.count <= segment;
  clear_pieces();
  if (inline_payload) set_pieces(0, collective.count);
  announce(collective, in.bytes());
  for (std::int64_t first = 0; first < collective.count; first += segment) {
    const std::int64_t count = std::min(segment, collective.count - first);
    if (!inline_payload) {
      set_pieces(first, count);
      exchange_.transfer(pieces_);
    }
    reduce(collective.dtype, collective.op, count, source + rank() * part_bytes + first * element,
           target + first * element);
  }
  exchange_.finish();
}

void HostCommunicator::all_gather(const Context& /*ctx*/, const Tensor& in, const Tensor& out) {
  check_all_gather(*this, in, out);
  const std::int64_t element = dtype_size(in.dtype);
  const Collective collective{.count = enter(in.numel()), .kind = CollectiveKind::all_gather, .dtype = in.dtype};
  const std::int64_t bytes = collective.count * element;
  char* source = static_cast<char*>(in.data);
  char* target = static_cast<char*>(out.data);
  for (int r = 0; r < size(); ++r)
    pieces_[static_cast<std::size_t>(r)] = {source, bytes, target + r * in.bytes(), bytes};
  announce(collective, out.bytes());
  if (bytes > CollectiveExchange::kInlineBytes) exchange_.transfer(pieces_);
  char* own = target + rank() * in.bytes();
  if (own != source && bytes > 0) std::memcpy(own, source, static_cast<std::size_t>(bytes));
  exchange_.finish();
}

void HostCommunicator::rotate(const Context& ctx, const Tensor& in, const Tensor& out, int shift) {
  check_rotate(*this, in, out, shift);
  if (shift == 0) return copy(ctx, out.data, in.data, in.bytes());
  const Collective collective{
      .count = enter(in.numel()), .shift = shift, .kind = CollectiveKind::rotate, .dtype = in.dtype};
  const std::int64_t bytes = collective.count * dtype_size(in.dtype);
  clear_pieces();
  Piece& to = pieces_[static_cast<std::size_t>((rank() + size() - shift) % size())];
  to.send = static_cast<const char*>(in.data);
  to.send_bytes = bytes;
  Piece& from = pieces_[static_cast<std::size_t>((rank() + shift) % size())];  // of two ranks, the same
  from.receive = static_cast<char*>(out.data);
  from.receive_bytes = bytes;
  announce(collective, in.bytes());
  if (bytes > CollectiveExchange::kInlineBytes) exchange_.transfer(pieces_);
  exchange_.finish();
}

void HostCommunicator::broadcast(const Context& /*ctx*/, const Tensor& data, int root) {
  check_broadcast(*this, data, root);
  const Collective collective{
      .count = enter(data.numel()), .root = root, .kind = CollectiveKind::broadcast, .dtype = data.dtype};
  const std::int64_t bytes = collective.count * dtype_size(data.dtype);
  char* own = static_cast<char*>(data.data);
  clear_pieces();
  for (int r = 0; r < size(); ++r) {
    Piece& piece = pieces_[static_cast<std::size_t>(r)];
    if (rank() == root) piece = {.send = own, .send_bytes = bytes};
    if (r == root) piece = {.receive = own, .receive_bytes = bytes};
  }
  announce(collective, data.bytes());
  if (bytes > CollectiveExchange::kInlineBytes) exchange_.transfer(pieces_);
  exchange_.finish();
}

void HostCommunicator::barrier() {
  enter(0);
  clear_pieces();
  announce({.kind = CollectiveKind::barrier}, 0);
  exchange_.finish();
}

std::unique_ptr<Communicator> HostCommunicator::split(int color, int key, const std::string& name) {
  struct Wish {
    std::int32_t color, key;
  };
  Wish mine{color, key};
  std::vector<Wish> wishes(pieces_.size());
  all_gather({}, tensor_over(&mine, Dtype::u8, 1, sizeof mine),
             tensor_over(wishes.data(), Dtype::u8, size(), sizeof mine));
  std::vector<int> members;
  for (int r = 0; r < size(); ++r)
    if (wishes[static_cast<std::size_t>(r)].color == color) members.push_back(r);
  std::stable_sort(members.begin(), members.end(), [&](int a, int b) {
    return wishes[static_cast<std::size_t>(a)].key < wishes[static_cast<std::size_t>(b)].key;
  });
  return std::make_unique<HostCommunicator>(exchange_.transport().part(members), name, job_, options_);
}

}  // namespace

std::unique_ptr<Communicator> make_host_communicator(std::unique_ptr<Transport> transport, const std::string& name,
                                                     const std::shared_ptr<JobRanks>& ranks,
                                                     const CommunicatorOptions& options) {
  return std::make_unique<HostCommunicator>(std::move(transport), name, ranks, options);
}

}  // namespace trainer
