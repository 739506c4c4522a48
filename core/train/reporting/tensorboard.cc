#include "core/train/reporting/tensorboard.h"

#include <unistd.h>

#include <bit>
#include <ctime>
#include <filesystem>

#include "core/runtime/check.h"
#include "core/runtime/environment.h"
#include "core/train/reporting/crc32c.h"

namespace trainer {
namespace {

// Fields of the messages Event, Summary, Summary.Value and SessionLog in TensorFlow's event.proto and summary.proto.
constexpr std::uint32_t kEventWallTime = 1, kEventStep = 2, kEventFileVersion = 3, kEventSummary = 5,
                        kEventSessionLog = 7;
constexpr std::uint32_t kSummaryValue = 1, kValueTag = 1, kValueSimple = 2;
constexpr std::uint32_t kSessionStatus = 1, kSessionStart = 1;

/// Little-endian bytes, whatever the host.
template <class T>
std::string little_endian(T value) {
  std::string bytes(sizeof value, '\0');
  for (std::size_t i = 0; i < sizeof value; ++i) bytes[i] = static_cast<char>((value >> (8 * i)) & 0xFF);
  return bytes;
}

/// A protobuf message in the making; wire types 0 (varint), 1 (64 bits), 2 (length and bytes) and 5 (32 bits).
class Message {
 public:
  Message& varint_field(std::uint32_t field, std::uint64_t value) {
    varint(field << 3 | 0);
    varint(value);
    return *this;
  }
  Message& double_field(std::uint32_t field, double value) {
    varint(field << 3 | 1);
    bytes_ += little_endian(std::bit_cast<std::uint64_t>(value));
    return *this;
  }
  Message& bytes_field(std::uint32_t field, std::string_view value) {
    varint(field << 3 | 2);
    varint(value.size());
    bytes_ += value;
    return *this;
  }
  Message& float_field(std::uint32_t field, float value) {
    varint(field << 3 | 5);
    bytes_ += little_endian(std::bit_cast<std::uint32_t>(value));
    return *this;
  }
  const std::string& bytes() const { return bytes_; }

 private:
  void varint(std::uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_ += static_cast<char>((value & 0x7F) | 0x80);
    bytes_ += static_cast<char>(value);
  }
  std::string bytes_;
};

std::string file_name() {
  return fmt::format("events.out.tfevents.{:010}.{}.{}.0", static_cast<long long>(std::time(nullptr)), host_name(),
                     getpid());
}

/// The path of an event file in `directory`, which is there then. What goes wrong is seen when the file is opened.
std::string new_file(const std::string& directory) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  return (std::filesystem::path(directory) / file_name()).string();
}

double now() {
  timespec time{};
  clock_gettime(CLOCK_REALTIME, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

}  // namespace

TensorBoardWriter::TensorBoardWriter(const std::string& directory, std::int64_t completed_steps)
    : file_(new_file(directory)) {
  const double start = now();
  write_record(Message().double_field(kEventWallTime, start).bytes_field(kEventFileVersion, "brain.Event:2").bytes());
  if (completed_steps > 0) {
    // A session start makes TensorBoard drop events of this step and later ones from the files read before this one.
    const Message session = Message().varint_field(kSessionStatus, kSessionStart);
    write_record(Message()
                     .double_field(kEventWallTime, start)
                     .varint_field(kEventStep, static_cast<std::uint64_t>(completed_steps) + 1)
                     .bytes_field(kEventSessionLog, session.bytes())
                     .bytes());
  }
  flush();
}

void TensorBoardWriter::scalar(std::string_view tag, std::int64_t step, double wall_time, double value) {
  const Message point = Message().bytes_field(kValueTag, tag).float_field(kValueSimple, static_cast<float>(value));
  const Message summary = Message().bytes_field(kSummaryValue, point.bytes());
  write_record(Message()
                   .double_field(kEventWallTime, wall_time)
                   .varint_field(kEventStep, static_cast<std::uint64_t>(step))
                   .bytes_field(kEventSummary, summary.bytes())
                   .bytes());
}

void TensorBoardWriter::append(const StepRecord& record) {
  for_each_metric(record, [&](const char*, const char* tag, auto value) {
    if (*tag != '\0') scalar(tag, record.step, record.time, static_cast<double>(value));
  });
}

// TFRecord: u64 length, u32 masked crc of those 8 bytes, the bytes, u32 masked crc of the bytes.
void TensorBoardWriter::write_record(std::string_view event) {
  const std::string length = little_endian(static_cast<std::uint64_t>(event.size()));
  buffer_ += length;
  buffer_ += little_endian(masked_crc32c(length));
  buffer_ += event;
  buffer_ += little_endian(masked_crc32c(event));
}

}  // namespace trainer
