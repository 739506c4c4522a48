#include <algorithm>
#include <map>

#include "core/config/reader.h"
#include "core/runtime/counted.h"
#include "core/train/reporting/tables.h"
#include "data/token_shards.h"
#include "launch/commands.h"

namespace trainer {
namespace {

DataFormat format_from_name(const std::string& name) {
  for (std::size_t i = 0; i < std::size(EnumNames<DataFormat>::values); ++i)
    if (name == EnumNames<DataFormat>::values[i]) return static_cast<DataFormat>(i);
  fail(ExitCode::config, "--format '{}': right would be auto, hdf5, bin_uint16 or bin_uint32", name);
}

/// What was taken: by file, the last ones together when there are many.
std::string text_table(const std::vector<TextFile>& files) {
  constexpr std::size_t kMost = 20;
  Table table("Text", {"file", "documents", "size"});
  const auto row = [&](const std::string& name, std::int64_t documents, std::int64_t bytes) {
    table.row({name, std::to_string(documents), format_bytes(bytes)});
  };
  const std::size_t shown = files.size() <= kMost ? files.size() : kMost - 1;
  for (std::size_t i = 0; i < shown; ++i) row(files[i].path, files[i].documents, files[i].bytes);
  TextFile rest;
  for (std::size_t i = shown; i < files.size(); ++i) {
    rest.documents += files[i].documents;
    rest.bytes += files[i].bytes;
  }
  if (shown < files.size()) row(fmt::format("{} more files", files.size() - shown), rest.documents, rest.bytes);
  return table.text();
}

/// What was not, by reason.
std::string skipped_table(const std::vector<SkippedText>& skipped) {
  std::map<std::string, SkippedText> by_reason;
  for (const SkippedText& one : skipped) {
    const auto [place, is_new] = by_reason.try_emplace(one.why, one);
    if (is_new) continue;
    place->second.number += one.number;
    place->second.path = std::min(place->second.path, one.path);
  }
  Table table("Skipped", {"number", "why", "the first"});
  for (const auto& [why, all] : by_reason) table.row({std::to_string(all.number), why, all.path});
  return table.text();
}

}  // namespace

ExitCode command_data_prepare(const PrepareOptions& options) {
  const PrepareResult result = prepare_text(options);
  fmt::print("{}", text_table(result.text.files));
  if (!result.text.skipped.empty()) fmt::print("{}", skipped_table(result.text.skipped));
  Table table("Token shards", {"file", "tokens"});
  for (const auto* shards : {&result.train, &result.validation})
    for (const PreparedShard& shard : *shards) table.row({shard.path, fmt::format("{}", shard.tokens)});
  fmt::print("{}{}, {} of text, tokenizer {} (model.vocab_size: {})\n", table.text(),
             counted(result.documents, "document"), format_bytes(result.source_bytes), options.tokenizer,
             result.vocab_size);
  return ExitCode::ok;
}

ExitCode command_data_check(const DataCheckOptions& options) {
  const TokenDataset dataset = TokenDataset::open(options.files, format_from_name(options.format), options.vocab_size);
  const DatasetSummary summary = dataset.scan();
  fmt::print("{}, {}, {} of them targets, largest id {}: all below vocab_size {}\n",
             counted(std::ssize(dataset.shards()), "shard"), counted(summary.tokens, "token"), summary.target_tokens,
             summary.largest_id, options.vocab_size);
  return ExitCode::ok;
}

}  // namespace trainer
