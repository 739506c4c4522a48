// A file that grows by whole records, and may refuse them for a while: a full disk must not end a run.
#pragma once
#include <cstdint>
#include <deque>
#include <string>

namespace trainer {

class AppendFile {
 public:
  /// Records kept in memory while the file refuses them; beyond, the oldest are lost.
  static constexpr std::size_t kMostWaiting = 100'000;

  /// Opens `path` for appending; makes it where it is missing. Throws Error(other) when it cannot be opened.
  explicit AppendFile(std::string path);
  ~AppendFile();
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;

  /// Hands the records that wait, and then this one, to the operating system; a file that was removed is made again.
  /// Those that the file refuses wait for the next call; nothing of them stays in the file.
  void append(std::string record);
  /// The same without a new record.
  void retry();

  const std::string& path() const { return path_; }
  /// Why the file refuses what waits; empty when nothing does.
  const std::string& problem() const { return problem_; }
  /// Records that are not in the file.
  std::int64_t missing() const { return lost_ + static_cast<std::int64_t>(waiting_.size()); }

 private:
  bool write(const std::string& record) const;
  /// Whether the open file still has a name, an old or a new one.
  bool there();

  std::string path_;
  int file_ = -1;
  std::deque<std::string> waiting_;
  std::int64_t lost_ = 0;
  std::string problem_;
};

}  // namespace trainer
