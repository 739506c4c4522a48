// What is printed at start: aligned plain-text tables.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/config/config.h"

namespace trainer {

/// "1.50 GiB", "312 B": binary units, three significant digits.
std::string format_bytes(std::int64_t bytes);
/// "853k", "7.24B": thousands, millions, billions, three significant digits.
std::string format_count(double count);
/// "53.6 TFLOP/s", "1.20 GFLOP/s".
std::string format_flops(double flops_per_second);
/// "3210 GB/s", "86.0 MB/s": decimal units, as links are sold.
std::string format_rate(double bytes_per_second);
/// Three significant digits, also of what is below one: "323", "0.0123".
std::string format_digits(double value);
/// "48s", "3m 20s", "5h 02m", "2d 03h".
std::string format_duration(double seconds);

/// Columns are as wide as their widest cell; numbers are aligned to the right when a column holds nothing else.
class Table {
 public:
  explicit Table(std::string title, std::vector<std::string> header = {})
      : title_(std::move(title)), header_(std::move(header)) {}
  /// As many cells as the header has; without a header as many as the first row.
  void row(std::vector<std::string> cells);
  /// Title, header, rows; each line ends with a line end, none with a space.
  std::string text() const;

 private:
  std::string title_;
  std::vector<std::string> header_;
  std::vector<std::vector<std::string>> rows_;
};

struct RankRow {
  int rank = 0;
  std::string host;
  int pid = 0;
  std::string device;  // "cpu (1 thread)", "cuda:0 NVIDIA H200"
  int tp = 0;
  int dp = 0;
  // GPUs only:
  std::string pci;     // bus id
  std::string numa;    // node of the host
  std::string nvlink;  // numbers of the cards that are reached over NVLink
};
std::string ranks_table(const std::vector<RankRow>& rows);

/// Shape of the model; `num_params` is the logical number (ParamLayout::global_numel).
std::string model_table(const ModelConfig& model, std::int64_t num_params);

/// Batch, steps and tokens of the run (`total_tokens`: what it will have processed), learning rate schedule.
std::string schedule_table(const Config& config, std::int64_t total_steps, std::int64_t completed_steps,
                           std::int64_t total_tokens, int data_parallel_size);

/// How throughput will be counted: FLOPs a token and the peak that MFU refers to.
std::string throughput_note(const ModelConfig& model, std::int64_t seq_length, std::optional<double> peak_tflops);

}  // namespace trainer
