#include "core/train/reporting/tensorboard.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <map>
#include <regex>
#include <vector>

#include "core/runtime/check.h"
#include "core/train/reporting/crc32c.h"
#include "tests/support/files.h"

namespace trainer {
namespace {

std::uint64_t unsigned_at(const std::string& bytes, std::size_t at, std::size_t size) {
  std::uint64_t value = 0;
  for (std::size_t i = size; i-- > 0;) value = value << 8 | static_cast<unsigned char>(bytes.at(at + i));
  return value;
}

/// The payloads of a TFRecord file; checks every checksum.
std::vector<std::string> read_records(const std::string& path) {
  const std::string bytes = read_file(path);
  std::vector<std::string> records;
  for (std::size_t at = 0; at < bytes.size();) {
    const auto length = static_cast<std::size_t>(unsigned_at(bytes, at, 8));
    EXPECT_EQ(unsigned_at(bytes, at + 8, 4), masked_crc32c(bytes.substr(at, 8)));
    records.push_back(bytes.substr(at + 12, length));
    EXPECT_EQ(unsigned_at(bytes, at + 12 + length, 4), masked_crc32c(records.back()));
    at += length + 16;
  }
  return records;
}

/// Fields of a protobuf message, numbers and bytes alike as raw text of the value.
std::map<std::uint64_t, std::string> parse(const std::string& message) {
  std::map<std::uint64_t, std::string> fields;
  std::size_t at = 0;
  const auto varint = [&] {
    std::uint64_t value = 0;
    for (unsigned shift = 0;; shift += 7) {
      const auto byte = static_cast<unsigned char>(message.at(at++));
      value |= static_cast<std::uint64_t>(byte & 0x7F) << shift;
      if (byte < 0x80) return value;
    }
  };
  while (at < message.size()) {
    const std::uint64_t key = varint();
    const std::uint64_t type = key & 7;
    if (type == 0) {
      fields[key >> 3] = std::to_string(varint());
      continue;
    }
    const std::uint64_t size = type == 1 ? 8 : type == 5 ? 4 : varint();
    fields[key >> 3] = message.substr(at, size);
    at += size;
  }
  return fields;
}

template <class T>
T value_of(const std::string& bytes) {
  T value{};
  EXPECT_EQ(bytes.size(), sizeof value);
  std::memcpy(&value, bytes.data(), sizeof value);
  return value;
}

TEST(TensorBoard, NamesTheFileAsTensorBoardExpects) {
  const TemporaryFolder folder;
  TensorBoardWriter writer(folder / "run/tb", 0);
  const std::string name = std::filesystem::path(writer.file().path()).filename();
  const std::regex pattern("events\\.out\\.tfevents\\.[0-9]{10}\\..+\\." + std::to_string(getpid()) + "\\.0");
  EXPECT_TRUE(std::regex_match(name, pattern)) << name;
}

TEST(TensorBoard, StartsWithTheVersionAndHoldsScalars) {
  const TemporaryFolder folder;
  TensorBoardWriter writer(folder.path(), 0);
  writer.scalar("train/loss", 300, 1.25e9, 2.5);
  writer.flush();
  const auto records = read_records(writer.file().path());
  ASSERT_EQ(records.size(), 2u);
  EXPECT_EQ(parse(records[0]).at(3), "brain.Event:2");

  const auto event = parse(records[1]);
  EXPECT_EQ(value_of<double>(event.at(1)), 1.25e9);
  EXPECT_EQ(event.at(2), "300");
  const auto point = parse(parse(event.at(5)).at(1));
  EXPECT_EQ(point.at(1), "train/loss");
  EXPECT_EQ(value_of<float>(point.at(2)), 2.5f);
}

// Bytes written out by hand from the format's definition.
TEST(TensorBoard, ScalarHasTheseBytes) {
  const TemporaryFolder folder;
  TensorBoardWriter writer(folder.path(), 0);
  writer.scalar("a", 1, 1.0, 1.0);
  writer.flush();
  const std::string expected(
      "\x09\x00\x00\x00\x00\x00\x00\xf0\x3f"  // wall_time = 1.0
      "\x10\x01"                              // step = 1
      "\x2a\x0a\x0a\x08"                      // summary, 10 bytes: value, 8 bytes
      "\x0a\x01\x61"                          // tag = "a"
      "\x15\x00\x00\x80\x3f",                 // simple_value = 1.0
      9 + 2 + 4 + 3 + 5);
  EXPECT_EQ(read_records(writer.file().path()).back(), expected);
}

TEST(TensorBoard, WritesARecordsCurves) {
  const TemporaryFolder folder;
  TensorBoardWriter writer(folder.path(), 0);
  StepRecord record;
  record.step = 3;
  record.loss = 1.5;
  record.eval_loss = 1.75;
  writer.append(record);
  writer.flush();
  std::map<std::string, float> curves;
  const auto records = read_records(writer.file().path());
  for (std::size_t i = 1; i < records.size(); ++i) {
    const auto point = parse(parse(parse(records[i]).at(5)).at(1));
    curves[point.at(1)] = value_of<float>(point.at(2));
  }
  EXPECT_EQ(curves, (std::map<std::string, float>{{"train/loss", 1.5f},
                                                  {"train/lr", 0.f},
                                                  {"train/grad_norm", 0.f},
                                                  {"train/skipped", 0.f},
                                                  {"eval/loss", 1.75f}}));
}

TEST(TensorBoard, AResumeMarksWhereItStarts) {
  const TemporaryFolder folder;
  TensorBoardWriter writer(folder.path(), 10);
  const auto records = read_records(writer.file().path());
  ASSERT_EQ(records.size(), 2u);
  EXPECT_EQ(parse(records[1]).at(2), "11");
  EXPECT_EQ(parse(parse(records[1]).at(7)).at(1), "1");  // SessionLog.START
}

TEST(TensorBoard, ReportsAFolderThatCannotBeMade) {
  EXPECT_THROW(TensorBoardWriter("/dev/null/tb", 0), Error);
}

}  // namespace
}  // namespace trainer
