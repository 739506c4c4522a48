// Scalars in TensorBoard's event file format, written by hand: TFRecord framing around protobuf messages of a few
// fields.
#pragma once
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>

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
  /// Hands everything written so far to the operating system. Throws Error(other) when it cannot be written.
  void flush();

  const std::string& path() const { return path_; }

 private:
  void write_record(std::string_view event);

  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::string path_;
  std::unique_ptr<std::FILE, Close> file_;
};

}  // namespace trainer
