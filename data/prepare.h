// Text files to token shards.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace trainer {

struct PrepareOptions {
  std::vector<std::string> inputs;  // files, folders (their .txt files) or patterns; a file is a document
  std::string output_dir;           // made when missing
  std::string tokenizer = "bytes";  // data/byte_tokenizer.h; the only one
  double validation_fraction = 0.05;
  std::int64_t shard_tokens = 100'000'000;  // tokens in a shard at most
  bool overwrite = false;                   // replace the shards that output_dir has
};

struct PreparedShard {
  std::string path;
  std::int64_t tokens = 0;
};

struct PrepareResult {
  std::vector<PreparedShard> train, validation;
  std::int64_t documents = 0;
  std::int64_t source_bytes = 0;
  std::int64_t train_tokens = 0;
  std::int64_t validation_tokens = 0;
  std::int64_t vocab_size = 0;
};

/// Writes output_dir/train-00000.h5, ... and validation-00000.h5, ...: the documents one behind the other in sorted
/// order, an end-of-text token between two of them; the last validation_fraction of all tokens is held out. Text is
/// streamed, so that it may be larger than memory. Shards get their names only after all of them were written; an
/// error leaves the folder as it was. Throws Error(config) for a wrong option, Error(data) for a file that is missing,
/// empty, or changes while it is read, and for shards that would be replaced without `overwrite`.
PrepareResult prepare_text(const PrepareOptions& options);

}  // namespace trainer
