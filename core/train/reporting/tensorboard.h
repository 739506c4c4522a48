// Scalars in TensorBoard's event file format, written by hand: TFRecord framing around protobuf messages of a few
// fields.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "core/train/reporting/append_file.h"
#include "core/train/reporting/metrics.h"

namespace trainer {

class TensorBoardWriter {
 public:
  /// Starts a new file `events.out.tfevents.<unix time>.<host>.<pid>.0` in `directory`, which is made if needed. A
  /// resume adds a file beside the earlier ones; `completed_steps` > 0 tells TensorBoard to forget later steps of those
  /// files, because they are run again. Throws Error(other) when the file cannot be made.
  TensorBoardWriter(const std::string& directory, std::int64_t completed_steps);

  /// `wall_time`: Unix time in seconds. Stored as a 32-bit float (the format's own width). Buffered until flush().
  void scalar(std::string_view tag, std::int64_t step, double wall_time, double value);
  /// Every metric of the record that has a tag.
  void append(const StepRecord& record);
  /// Hands everything written so far to the operating system, or keeps it until the file takes it.
  void flush() { file_.append(std::exchange(buffer_, {})); }

  AppendFile& file() { return file_; }

 private:
  void write_record(std::string_view event);

  AppendFile file_;
  std::string buffer_;  // since flush()
};

}  // namespace trainer
