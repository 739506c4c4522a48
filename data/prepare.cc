#include "data/prepare.h"

#include <fnmatch.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <span>
#include <string_view>
#include <system_error>
#include <utility>

#include "core/runtime/check.h"
#include "core/runtime/counted.h"
#include "data/byte_tokenizer.h"
#include "data/shard_writer.h"

namespace trainer {
namespace {

namespace fs = std::filesystem;

/// Shards of an earlier call; none in a folder that is not there yet.
std::vector<fs::path> existing_shards(const std::string& folder) {
  std::error_code error;
  if (!fs::exists(folder, error)) return {};
  const auto is_shard = [](const std::string& name) {
    return ::fnmatch("train-[0-9][0-9][0-9][0-9][0-9].h5", name.c_str(), 0) == 0 ||
           ::fnmatch("validation-[0-9][0-9][0-9][0-9][0-9].h5", name.c_str(), 0) == 0;
  };
  std::vector<fs::path> shards;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error))
    if (is_shard(entry->path().filename().native())) shards.push_back(entry->path());
  if (error) fail(ExitCode::data, "{}: the folder cannot be read: {}", folder, error.message());
  std::sort(shards.begin(), shards.end());
  return shards;
}

/// A sequence of tokens dealt to shards of a size known beforehand.
class ShardSequence {
 public:
  std::vector<PreparedShard> plan(const std::string& prefix, std::int64_t tokens, const PrepareOptions& options,
                                  std::int64_t source_bytes) {
    std::vector<PreparedShard> planned;
    constexpr std::int64_t limit = 100'000;  // five digits
    const std::int64_t shards = tokens / options.shard_tokens + (tokens % options.shard_tokens != 0 ? 1 : 0);
    if (shards > limit)
      fail(ExitCode::config, "{} tokens make {} shards of {}: at most {} are written, so make them larger", tokens,
           shards, options.shard_tokens, limit);
    for (std::int64_t i = 0; i < shards; ++i) {
      const std::int64_t count = std::min(options.shard_tokens, tokens - i * options.shard_tokens);
      planned.push_back({(fs::path(options.output_dir) / fmt::format("{}-{:05}.h5", prefix, i)).native(), count});
      planned_.emplace_back(planned.back().path, ShardPlan{.tokens = count,
                                                           .vocab_size = ByteTokenizer::vocab_size,
                                                           .tokenizer = std::string(ByteTokenizer::name),
                                                           .source_bytes = source_bytes});
    }
    return planned;
  }

  void begin_document() { writer().begin_document(); }

  void append(std::span<const std::int32_t> ids) {
    while (!ids.empty()) {
      ShardWriter& shard = writer();
      const auto count = static_cast<std::size_t>(std::min<std::int64_t>(std::ssize(ids), shard.tokens_left()));
      shard.append(ids.first(count));
      ids = ids.subspan(count);
      if (shard.tokens_left() == 0) shard.finish();
    }
  }

  /// Names all shards; then removes those of `old` that none has replaced.
  void publish(const std::vector<fs::path>& old) {
    std::set<fs::path> names;
    for (ShardWriter& writer : writers_) {
      writer.publish();
      names.insert(fs::path(writer.path()).filename());
    }
    for (const fs::path& path : old) {
      std::error_code error;
      if (!names.contains(path.filename()) && !fs::remove(path, error))
        fail(ExitCode::data, "{}: this shard of an earlier text cannot be removed: {}", path.native(), error.message());
    }
  }

 private:
  /// The shard that takes the next token.
  ShardWriter& writer() {
    if (writers_.empty() || writers_.back().tokens_left() == 0) {
      const auto& [path, plan] = planned_[writers_.size()];
      writers_.emplace_back(path, plan);
    }
    return writers_.back();
  }

  std::vector<std::pair<std::string, ShardPlan>> planned_;
  std::vector<ShardWriter> writers_;
};

void check_options(const PrepareOptions& options) {
  if (options.tokenizer != ByteTokenizer::name)
    fail(ExitCode::config, "tokenizer '{}' is not known: '{}' is", options.tokenizer, ByteTokenizer::name);
  if (!(options.validation_fraction >= 0 && options.validation_fraction < 1))
    fail(ExitCode::config, "the validation fraction is {}: it must lie in [0, 1)", options.validation_fraction);
  if (options.shard_tokens < 1)
    fail(ExitCode::config, "{} tokens a shard: it must be at least 1", options.shard_tokens);
  if (options.output_dir.empty()) fail(ExitCode::config, "no output folder was given");
}

}  // namespace

PrepareResult prepare_text(const PrepareOptions& options) {
  check_options(options);
  const std::vector<fs::path> old_shards = existing_shards(options.output_dir);
  if (!old_shards.empty() && !options.overwrite)
    fail(ExitCode::data, "{}: exists already ({} in this folder); ask for overwriting to replace them",
         old_shards.front().native(), counted(std::ssize(old_shards), "shard"));

  PrepareResult result;
  result.text = find_text(options.inputs, options.jsonl_key);
  result.vocab_size = ByteTokenizer::vocab_size;
  for (const TextFile& file : result.text.files) {
    result.documents += file.documents;
    result.source_bytes += file.bytes;
  }
  const std::int64_t tokens = result.source_bytes + result.documents - 1;  // an end of text between two documents
  result.validation_tokens = static_cast<std::int64_t>(static_cast<double>(tokens) * options.validation_fraction);
  result.train_tokens = tokens - result.validation_tokens;
  if (options.validation_fraction > 0 && result.validation_tokens == 0)
    fail(ExitCode::data, "the validation fraction {} of {} tokens is not one token: give more text or hold out 0",
         options.validation_fraction, tokens);

  std::error_code error;
  fs::create_directories(options.output_dir, error);
  if (error) fail(ExitCode::data, "{}: the folder cannot be made: {}", options.output_dir, error.message());

  ShardSequence shards;
  result.train = shards.plan("train", result.train_tokens, options, result.source_bytes);
  result.validation = shards.plan("validation", result.validation_tokens, options, result.source_bytes);
  bool first = true;
  DocumentReader reader;
  reader.begin = [&] {
    if (!first) shards.append(std::vector<std::int32_t>{ByteTokenizer::end_of_text});
    first = false;
    shards.begin_document();
  };
  reader.text = [&](std::string_view text) { shards.append(ByteTokenizer::encode(text)); };
  for (const TextFile& file : result.text.files) read_documents(file, options.jsonl_key, reader);
  shards.publish(old_shards);
  return result;
}

}  // namespace trainer
