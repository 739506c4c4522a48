#include "core/train/reporting/tables.h"

#include <gtest/gtest.h>

#include "core/runtime/check.h"
#include "core/runtime/counted.h"

namespace trainer {
namespace {

TEST(Tables, FormatsBytesInBinaryUnits) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(312), "312 B");
  EXPECT_EQ(format_bytes(1536), "1.50 KiB");
  EXPECT_EQ(format_bytes(150LL << 30), "150 GiB");
  EXPECT_EQ(format_bytes((1LL << 40) - 1), "1.00 TiB");
}

TEST(Tables, FormatsCountsInThousands) {
  EXPECT_EQ(format_count(857), "857");
  EXPECT_EQ(format_count(852992), "853k");
  EXPECT_EQ(format_count(999999), "1.00M");
  EXPECT_EQ(format_count(7.241e9), "7.24B");
  EXPECT_EQ(format_count(1.5e13), "15.0T");
}

TEST(Tables, FormatsRatesInTheUnitThatFits) {
  EXPECT_EQ(format_flops(53.64e12), "53.6 TFLOP/s");
  EXPECT_EQ(format_flops(1.234e9), "1.23 GFLOP/s");
  EXPECT_EQ(format_flops(2250e12), "2250 TFLOP/s");
  EXPECT_EQ(format_rate(3.213e12), "3213 GB/s");
  EXPECT_EQ(format_rate(86e6), "86.0 MB/s");
  EXPECT_EQ(format_digits(0.012345), "0.0123");
  EXPECT_EQ(format_digits(0.5), "0.500");
  EXPECT_EQ(format_digits(323.4), "323");
  EXPECT_EQ(format_digits(0), "0");
}

TEST(Tables, CountsOfOneAreSingular) {
  EXPECT_EQ(counted(1, "rank"), "1 rank");
  EXPECT_EQ(counted(0, "rank"), "0 ranks");
  EXPECT_EQ(counted(8, "micro-batch"), "8 micro-batches");
  Config config;
  config.train.seq_length = 16;
  config.train.global_batch_size = 1;
  config.lr_scheduler.warmup_steps = 1;
  const std::string text = schedule_table(config, 1, 0, 16, 1);
  EXPECT_NE(text.find("1 x 16 tokens = 1 rank x 1 micro-batch x 1"), std::string::npos) << text;
  EXPECT_NE(text.find("1 step of warm-up"), std::string::npos) << text;
}

TEST(Tables, FormatsDurations) {
  EXPECT_EQ(format_duration(-1), "0s");
  EXPECT_EQ(format_duration(48.4), "48s");
  EXPECT_EQ(format_duration(59.6), "1m 00s");
  EXPECT_EQ(format_duration(200), "3m 20s");
  EXPECT_EQ(format_duration(18120), "5h 02m");
  EXPECT_EQ(format_duration(183600), "2d 03h");
}

TEST(Tables, AlignsColumns) {
  EXPECT_EQ(ranks_table({{0, "node-a", 41, "cpu", 0, 0}, {10, "b", 12345, "cuda:0 NVIDIA H200", 1, 0}}),
            "Ranks\n"
            "  rank  host      pid  device              tp  dp\n"
            "     0  node-a     41  cpu                  0   0\n"
            "    10  b       12345  cuda:0 NVIDIA H200   1   0\n");
}

TEST(Tables, GpusHaveAPlace) {
  EXPECT_EQ(ranks_table({{.host = "a", .device = "cuda:0", .pci = "0000:1B:00.0", .numa = "0", .nvlink = "1 2"}}),
            "Ranks\n"
            "  rank  host  pid  device  tp  dp  pci           numa  nvlink\n"
            "     0  a       0  cuda:0   0   0  0000:1B:00.0     0  1 2\n");
}

TEST(Tables, ARowOfAnotherLengthIsRefused) {
  Table table("t", {"a", "b"});
  EXPECT_THROW(table.row({"only one"}), Error);
}

TEST(Tables, ScheduleShowsTheBatchTakenApart) {
  Config config;
  config.train.seq_length = 256;
  config.train.micro_batch_size = 4;
  config.train.global_batch_size = 32;
  config.lr_scheduler.warmup_steps = 10;
  const std::string text = schedule_table(config, 400, 100, 3'000'000, 2);
  EXPECT_NE(text.find("101 to 400"), std::string::npos) << text;
  EXPECT_NE(text.find("8.19k a step, 3.00M in all"), std::string::npos) << text;
  EXPECT_NE(text.find("32 x 256 tokens = 2 ranks x 4 micro-batches x 4"), std::string::npos) << text;
  EXPECT_NE(text.find("0.0003, cosine, 10 steps of warm-up, down to 3e-05"), std::string::npos) << text;
}

TEST(Tables, ModelAndThroughputNameTheirNumbers) {
  ModelConfig m;
  m.hidden_size = 128;
  m.num_layers = 4;
  m.num_attention_heads = 4;
  m.num_key_value_heads = 2;
  m.head_dim = 32;
  m.intermediate_size = 384;
  m.vocab_size = 257;
  EXPECT_NE(model_table(m, 853000).find("853k"), std::string::npos);
  EXPECT_NE(model_table(m, 853000).find("2 key/value, 32 wide, positions rope"), std::string::npos);
  // 6 x (4 x (2 x 128 x 128 + 2 x 128 x 64 + 3 x 128 x 384) + 128 x 257) + 6 x 4 x 256 x 128 = 5,704,... FLOPs
  EXPECT_NE(throughput_note(m, 256, std::nullopt).find("5.70M model FLOPs a token"), std::string::npos)
      << throughput_note(m, 256, std::nullopt);
  EXPECT_NE(throughput_note(m, 256, 989).find("989 TFLOP/s"), std::string::npos);
}

}  // namespace
}  // namespace trainer
