#include "core/config/reader.h"
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

}  // namespace

ExitCode command_data_prepare(const PrepareOptions& options) {
  const PrepareResult result = prepare_text(options);
  Table table("Token shards", {"file", "tokens"});
  for (const auto* shards : {&result.train, &result.validation})
    for (const PreparedShard& shard : *shards) table.row({shard.path, fmt::format("{}", shard.tokens)});
  fmt::print("{}{} documents, {} of text, tokenizer {} (model.vocab_size: {})\n", table.text(), result.documents,
             format_bytes(result.source_bytes), options.tokenizer, result.vocab_size);
  return ExitCode::ok;
}

ExitCode command_data_check(const DataCheckOptions& options) {
  const TokenDataset dataset = TokenDataset::open(options.files, format_from_name(options.format), options.vocab_size);
  const DatasetSummary summary = dataset.scan();
  fmt::print("{} shards, {} tokens, {} of them targets, largest id {}: all below vocab_size {}\n",
             dataset.shards().size(), summary.tokens, summary.target_tokens, summary.largest_id, options.vocab_size);
  return ExitCode::ok;
}

}  // namespace trainer
