#include "core/train/comm_bench.h"

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>

#include "core/runtime/device.h"
#include "core/train/reporting/tables.h"

namespace trainer {
namespace {

constexpr std::int64_t kLeastBytes = 64 << 10;
constexpr std::int64_t kBytesInAll = std::int64_t{8} << 30;  // of a timed run: enough repetitions of small sizes

/// Mean milliseconds of `run`, repeated as its size allows.
double time_one(const Context& ctx, Communicator& group, std::int64_t bytes, const std::function<void()>& run) {
  constexpr int kWarmUp = 3;
  const auto times = static_cast<int>(std::clamp<std::int64_t>(kBytesInAll / bytes, 5, 200));
  for (int i = 0; i < kWarmUp; ++i) run();
  synchronize(ctx);
  group.barrier();
  Event start(ctx.device), end(ctx.device);
  start.record(ctx);
  for (int i = 0; i < times; ++i) run();
  end.record(ctx);
  end.synchronize();
  return end.milliseconds_since(start) / times;
}

void time_group(const Context& ctx, Communicator& group, std::int64_t max_bytes, const Tensor& whole,
                const Tensor& other, std::vector<CommTime>& times) {
  for (std::int64_t bytes = kLeastBytes; bytes <= max_bytes; bytes *= 4) {
    const std::int64_t part = bytes / dtype_size(whole.dtype) / group.size();
    const Tensor data = whole.flat_range(0, part * group.size()), piece = other.flat_range(0, part);
    const auto add = [&](const char* operation, const std::function<void()>& run) {
      times.push_back({.group = group.name(),
                       .operation = operation,
                       .ranks = group.size(),
                       .bytes = data.bytes(),
                       .ms = time_one(ctx, group, bytes, run)});
    };
    add("all_reduce", [&] { group.all_reduce(ctx, data, ReduceOp::max); });
    add("all_gather", [&] { group.all_gather(ctx, piece, data); });
    add("reduce_scatter", [&] { group.reduce_scatter(ctx, data, piece); });
  }
}

}  // namespace

double CommTime::algorithm_rate() const {
  return static_cast<double>(bytes) / (1e6 * ms);
}

double CommTime::bus_rate() const {
  const double passes = operation == "all_reduce" ? 2.0 : 1.0;
  return algorithm_rate() * passes * (ranks - 1) / ranks;
}

std::vector<CommTime> run_comm_bench(const Context& ctx, const Mesh& mesh, std::int64_t max_bytes) {
  const auto memory = allocate(ctx.device, max_bytes, "the data of the benchmark");
  const auto more = allocate(ctx.device, max_bytes, "the data of the benchmark");
  const std::int64_t count = max_bytes / dtype_size(Dtype::f32);
  const Tensor whole = tensor_over(memory.get(), Dtype::f32, 1, count);
  const Tensor other = tensor_over(more.get(), Dtype::f32, 1, count);
  std::vector<CommTime> times;
  const int world = mesh.world().size();
  for (Communicator* group : {&mesh.world(), &mesh.tp(), &mesh.dp(), &mesh.zero()}) {
    const bool seen = group != &mesh.world() && group->size() == world;
    const bool same_as_dp = group == &mesh.zero() && group->size() == mesh.dp().size();
    if (group->size() > 1 && !seen && !same_as_dp) time_group(ctx, *group, max_bytes, whole, other, times);
  }
  return times;
}

std::string comm_report(const std::vector<CommTime>& times) {
  Table table("Communication", {"group", "ranks", "operation", "bytes", "ms", "algbw GB/s", "busbw GB/s"});
  for (const CommTime& t : times)
    table.row({t.group, std::to_string(t.ranks), t.operation, format_bytes(t.bytes), fmt::format("{:.3f}", t.ms),
               format_digits(t.algorithm_rate()), format_digits(t.bus_rate())});
  return table.text();
}

std::string comm_json(const std::vector<CommTime>& times) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const CommTime& t : times)
    rows.push_back({{"group", t.group},
                    {"ranks", t.ranks},
                    {"operation", t.operation},
                    {"bytes", t.bytes},
                    {"ms", t.ms},
                    {"algbw_gb_s", t.algorithm_rate()},
                    {"busbw_gb_s", t.bus_rate()}});
  return nlohmann::ordered_json{{"communication", rows}}.dump();
}

}  // namespace trainer
