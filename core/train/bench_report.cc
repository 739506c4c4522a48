#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/train/bench.h"
#include "core/train/reporting/tables.h"

namespace trainer {
namespace {

constexpr std::size_t kOpsShown = 15;

std::string percent(double share) {
  return fmt::format("{:.1f}%", 100 * share);
}

std::string milliseconds(double ms) {
  return fmt::format("{:.2f}", ms);
}

std::string mfu_text(const std::optional<double>& mfu) {
  return mfu ? percent(*mfu) : std::string("n/a");
}

std::string clock_text(const std::optional<ClockSample>& clocks) {
  return clocks ? fmt::format("{:.0f} MHz, {:.0f} W", clocks->sm_mhz, clocks->watts) : std::string("n/a");
}

/// FLOP/s of products, bytes a second of everything else.
std::string rate_text(const OpTotal& op) {
  const double calls_per_second = 1e3 * op.calls / op.ms;
  if (op.cost.flops > 0) return format_flops(op.cost.flops * calls_per_second);
  return format_rate(static_cast<double>(op.cost.bytes) * calls_per_second);
}

std::string speed_table(const BenchResult& r) {
  Table table("Speed");
  table.row({"step", fmt::format("{:.2f} ms median, {:.2f} ms least of {}", r.median_ms, r.min_ms, r.step_ms.size())});
  table.row({"tokens/s", fmt::format("{:.0f}", r.tokens_per_second)});
  table.row({"model FLOP/s a device", format_flops(1e12 * r.tflops)});
  table.row({"MFU", mfu_text(r.mfu)});
  if (r.alone_ms)
    table.row({"exposed communication",
               fmt::format("{:.2f} ms, {} of the step; {:.2f} ms without any", r.median_ms - *r.alone_ms,
                           percent(1 - *r.alone_ms / r.median_ms), *r.alone_ms)});
  table.row({"clock, power", clock_text(r.clocks)});
  return table.text();
}

std::string split_table(const BenchResult& r) {
  Table table("Where a step goes", {"part", "ms", "share"});
  const auto row = [&](const char* part, double ms) {
    table.row({part, milliseconds(ms), percent(ms / r.profiled_ms)});
  };
  for (const OpKind kind : {OpKind::gemm, OpKind::attention, OpKind::memory_bound, OpKind::optimizer})
    row(op_kind_name(kind), r.kind_ms[static_cast<std::size_t>(kind)]);
  row("communication, in turn", r.kind_ms[static_cast<std::size_t>(OpKind::communication)]);
  row("between ops", r.gap_ms);
  row("step, profiled", r.profiled_ms);
  table.row({"data wait (host)", milliseconds(r.data_wait_ms), percent(r.data_wait_ms / r.profiled_ms)});
  return table.text();
}

std::string ops_table(const BenchResult& r) {
  Table table("Longest ops", {"op", "shape", "calls", "ms", "share", "rate"});
  for (std::size_t i = 0; i < std::min(kOpsShown, r.ops.size()); ++i) {
    const OpTotal& op = r.ops[i];
    table.row({op.name, op.cost.shape, fmt::format("{:.0f}", op.calls), milliseconds(op.ms),
               percent(op.ms / r.profiled_ms), rate_text(op)});
  }
  return table.text();
}

std::string memory_note(const BenchResult& r, const MemoryEstimate& planned) {
  if (r.device_bytes == 0) return fmt::format("memory: {} planned\n", format_bytes(planned.total_bytes()));
  return plan_check(planned, r.device_bytes) + "\n";
}

nlohmann::ordered_json clock_json(const std::optional<ClockSample>& clocks) {
  if (!clocks) return nullptr;
  return {{"sm_mhz", clocks->sm_mhz}, {"watts", clocks->watts}};
}

nlohmann::ordered_json optional_json(const std::optional<double>& value) {
  return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json(nullptr);
}

}  // namespace

std::string bench_report(const Config& config, const BenchResult& result, const MemoryEstimate& planned,
                         const BenchDevice& device) {
  return fmt::format("{}: {} x {} tokens a step, micro-batches of {}, deterministic {}\n\n{}\n{}\n{}\n{}",
                     device.description, config.train.global_batch_size, config.train.seq_length,
                     config.train.micro_batch_size, config.train.deterministic, speed_table(result),
                     split_table(result), ops_table(result), memory_note(result, planned));
}

std::string floor_report(const BenchResult& r) {
  if (!r.floor) return fmt::format("no floor: {}\n", r.no_floor);
  Table table("Floor");
  table.row({"step", fmt::format("{:.2f} ms median, {:.2f} ms least of {}", r.floor->median_ms, r.floor->min_ms,
                                 r.floor->replays)});
  table.row({"MFU", mfu_text(r.floor_mfu)});
  table.row({"clock, power", clock_text(r.floor_clocks)});
  table.row({"share of the floor", percent(r.floor->median_ms / r.median_ms)});
  return table.text();
}

std::string bench_json(const Config& config, const BenchResult& r, const MemoryEstimate& planned,
                       const BenchDevice& device) {
  nlohmann::ordered_json split;
  for (int kind = 0; kind < kOpKinds; ++kind)
    split[op_kind_name(static_cast<OpKind>(kind))] = r.kind_ms[static_cast<std::size_t>(kind)];
  split["between ops"] = r.gap_ms;
  nlohmann::ordered_json ops = nlohmann::ordered_json::array();
  for (const OpTotal& op : r.ops)
    ops.push_back({{"op", op.name},
                   {"shape", op.cost.shape},
                   {"kind", op_kind_name(op.cost.kind)},
                   {"calls", op.calls},
                   {"ms", op.ms},
                   {"bytes", op.cost.bytes},
                   {"flops", op.cost.flops}});
  nlohmann::ordered_json json = {{"device", device.description},
                                 {"seq_length", config.train.seq_length},
                                 {"micro_batch_size", config.train.micro_batch_size},
                                 {"global_batch_size", config.train.global_batch_size},
                                 {"deterministic", config.train.deterministic},
                                 {"step_ms", r.median_ms},
                                 {"step_ms_min", r.min_ms},
                                 {"tokens_per_second", r.tokens_per_second},
                                 {"tflops", r.tflops},
                                 {"mfu", optional_json(r.mfu)},
                                 {"step_ms_without_communication", optional_json(r.alone_ms)},
                                 {"clocks", clock_json(r.clocks)},
                                 {"profiled_ms", r.profiled_ms},
                                 {"split_ms", split},
                                 {"data_wait_ms", r.data_wait_ms},
                                 {"floor_ms", r.floor ? nlohmann::ordered_json(r.floor->median_ms) : nullptr},
                                 {"floor_mfu", optional_json(r.floor_mfu)},
                                 {"floor_clocks", clock_json(r.floor_clocks)},
                                 {"planned_bytes", planned.total_bytes()},
                                 {"arena_bytes", planned.arena_bytes()},
                                 {"device_bytes", r.device_bytes},
                                 {"ops", ops}};
  return json.dump();
}

}  // namespace trainer
