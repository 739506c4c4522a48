// Writes token shards as HDF5.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace trainer {

/// What is known of a shard before its first token.
struct ShardPlan {
  std::int64_t tokens = 0;        // exactly as many must be appended
  std::int64_t vocab_size = 0;    // ids are stored as uint16 when they fit, as uint32 otherwise
  std::string tokenizer;          // attribute of the same name
  std::int64_t source_bytes = 0;  // attribute of the same name: size of the text that the set of shards was made from
  bool loss_mask = false;
};

/// One shard: datasets `tokens`, `doc_offsets` (empty when no document was marked), `loss_mask` when planned,
/// attributes `vocab_size`, `tokenizer` and `source_bytes`. Datasets are contiguous, so that readers can map them. The
/// file is `path`.tmp until publish(), and removed with the writer when that never comes.
class ShardWriter {
 public:
  /// Throws Error(data) when the file cannot be made; so do all others when it cannot be written.
  ShardWriter(const std::string& path, const ShardPlan& plan);
  ~ShardWriter();
  ShardWriter(ShardWriter&&) noexcept;
  ShardWriter& operator=(ShardWriter&&) noexcept;

  /// A document begins at the next token.
  void begin_document();
  /// Throws Error(data) for an id outside the vocabulary. `mask` is as long as `ids` when planned, empty otherwise.
  void append(std::span<const std::int32_t> ids, std::span<const std::uint8_t> mask = {});
  std::int64_t tokens_left() const;
  /// After the last token: writes what remains and syncs the file to its disk.
  void finish();
  /// After finish(): gives the file its name, replacing one that has it.
  void publish();

  const std::string& path() const;

 private:
  struct Impl;  // keeps HDF5 out of this header
  std::unique_ptr<Impl> impl_;
};

}  // namespace trainer
