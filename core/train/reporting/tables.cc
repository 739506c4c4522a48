#include "core/train/reporting/tables.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "core/runtime/check.h"
#include "core/runtime/counted.h"
#include "core/train/reporting/throughput.h"

namespace trainer {
namespace {

template <std::size_t N>
std::string with_unit(double value, double base, const std::array<const char*, N>& units) {
  std::size_t unit = 0;
  for (; unit + 1 < N && value >= base * 0.9995; ++unit) value /= base;
  // Whole things have no decimals.
  return (unit == 0 ? fmt::format("{:.0f}", value) : format_digits(value)) + units[unit];
}

bool is_number(const std::string& cell) {
  return !cell.empty() && cell.find_first_not_of("0123456789.+-e%") == std::string::npos;
}

template <class E>
std::string name_of(E value) {
  return EnumNames<E>::values[static_cast<std::size_t>(value)];
}

}  // namespace

std::string format_bytes(std::int64_t bytes) {
  return with_unit(static_cast<double>(bytes), 1024, std::array{" B", " KiB", " MiB", " GiB", " TiB"});
}

std::string format_count(double count) {
  return with_unit(count, 1000, std::array{"", "k", "M", "B", "T"});
}

std::string format_flops(double flops_per_second) {
  return with_unit(flops_per_second, 1000, std::array{" FLOP/s", " kFLOP/s", " MFLOP/s", " GFLOP/s", " TFLOP/s"});
}

std::string format_rate(double bytes_per_second) {
  return with_unit(bytes_per_second, 1000, std::array{" B/s", " kB/s", " MB/s", " GB/s"});
}

std::string format_digits(double value) {
  constexpr int kMost = 6;
  int decimals = 0;
  for (double limit = 99.95; value < limit && decimals < kMost; limit /= 10) ++decimals;
  return fmt::format("{:.{}f}", value, value > 0 ? decimals : 0);
}

std::string format_duration(double seconds) {
  const auto total = static_cast<long long>(std::llround(std::max(seconds, 0.0)));
  const long long minutes = total / 60, hours = total / 3600, days = total / 86400;
  if (minutes == 0) return fmt::format("{}s", total);
  if (hours == 0) return fmt::format("{}m {:02}s", minutes, total % 60);
  if (days == 0) return fmt::format("{}h {:02}m", hours, minutes % 60);
  return fmt::format("{}d {:02}h", days, hours % 24);
}

void Table::row(std::vector<std::string> cells) {
  const std::size_t columns = !header_.empty() ? header_.size() : rows_.empty() ? cells.size() : rows_.front().size();
  TRAINER_CHECK(cells.size() == columns, "table '{}': {} cells in a row of {}", title_, cells.size(), columns);
  rows_.push_back(std::move(cells));
}

std::string Table::text() const {
  std::vector<std::vector<std::string>> lines = rows_;
  if (!header_.empty()) lines.insert(lines.begin(), header_);
  const std::size_t columns = lines.empty() ? 0 : lines.front().size();
  std::vector<std::size_t> widths(columns, 0);
  std::vector<bool> right(columns, !rows_.empty());
  for (std::size_t c = 0; c < columns; ++c) {
    for (const auto& line : lines) widths[c] = std::max(widths[c], line[c].size());
    for (const auto& line : rows_) right[c] = right[c] && is_number(line[c]);
  }
  std::string out = title_ + "\n";
  for (const auto& line : lines) {
    std::string text = "  ";
    for (std::size_t c = 0; c < columns; ++c)
      text += right[c] ? fmt::format("{:>{}}  ", line[c], widths[c]) : fmt::format("{:<{}}  ", line[c], widths[c]);
    text.erase(text.find_last_not_of(' ') + 1);
    out += text + "\n";
  }
  return out;
}

std::string ranks_table(const std::vector<RankRow>& rows) {
  const bool gpus = std::any_of(rows.begin(), rows.end(), [](const RankRow& r) { return !r.pci.empty(); });
  std::vector<std::string> header = {"rank", "host", "pid", "device", "tp", "dp"};
  if (gpus) header.insert(header.end(), {"pci", "numa", "nvlink"});
  Table table("Ranks", header);
  for (const RankRow& r : rows) {
    std::vector<std::string> row = {
        std::to_string(r.rank), r.host, std::to_string(r.pid), r.device, std::to_string(r.tp), std::to_string(r.dp)};
    if (gpus) row.insert(row.end(), {r.pci, r.numa, r.nvlink});
    table.row(row);
  }
  return table.text();
}

std::string model_table(const ModelConfig& m, std::int64_t num_params) {
  Table table("Model");
  table.row({"parameters", format_count(static_cast<double>(num_params)), fmt::format("{}", num_params)});
  table.row({"blocks", std::to_string(m.num_layers),
             fmt::format("hidden {}, MLP {} {}, {}", m.hidden_size, m.intermediate_size, name_of(m.activation),
                         name_of(m.norm))});
  table.row(
      {"heads", std::to_string(m.num_attention_heads),
       fmt::format("{} key/value, {} wide, positions {}", m.num_key_value_heads, m.head_dim, name_of(m.position))});
  table.row({"vocabulary", std::to_string(m.vocab_size),
             m.tie_word_embeddings ? "LM head tied to the embedding" : "LM head of its own"});
  return table.text();
}

std::string schedule_table(const Config& config, std::int64_t total_steps, std::int64_t completed_steps,
                           std::int64_t total_tokens, int data_parallel_size) {
  const TrainConfig& train = config.train;
  const std::int64_t tokens = train.global_batch_size * train.seq_length;
  const std::int64_t accumulated = train.global_batch_size / (train.micro_batch_size * data_parallel_size);
  Table table("Schedule");
  table.row({"steps", completed_steps > 0 ? fmt::format("{} to {}", completed_steps + 1, total_steps)
                                          : fmt::format("{}", total_steps)});
  table.row({"tokens", fmt::format("{} a step, {} in all", format_count(static_cast<double>(tokens)),
                                   format_count(static_cast<double>(total_tokens)))});
  table.row({"batch", fmt::format("{} x {} tokens = {} x {} x {}", train.global_batch_size, train.seq_length,
                                  counted(data_parallel_size, "rank"), counted(accumulated, "micro-batch"),
                                  train.micro_batch_size)});
  table.row({"learning rate",
             fmt::format("{:g}, {}, {} of warm-up, down to {:g}", config.optimizer.lr,
                         name_of(config.lr_scheduler.name), counted(config.lr_scheduler.warmup_steps, "step"),
                         config.optimizer.lr * config.lr_scheduler.min_lr_ratio)});
  table.row({"precision", name_of(config.precision.dtype)});
  return table.text();
}

std::string throughput_note(const ModelConfig& model, std::int64_t seq_length, std::optional<double> peak) {
  return fmt::format(
      "{} model FLOPs a token = 6 x {} (matrix weights with the LM head) + 6 x layers x seq x heads x head_dim (causal "
      "attention at half); MFU against {}",
      format_count(model_flops_per_token(model, seq_length)), format_count(static_cast<double>(matmul_params(model))),
      peak ? fmt::format("a dense peak of {:g} TFLOP/s a device", *peak) : "an unknown peak: n/a");
}

}  // namespace trainer
