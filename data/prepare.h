// Text files to token shards.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "data/text_files.h"

namespace trainer {

struct PrepareOptions {
  std::vector<std::string> inputs;  // data/text_files.h says what is taken
  std::string output_dir;           // made when missing
  std::string jsonl_key = "text";   // of the text in the objects of .jsonl files
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
  TextFiles text;
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
/// error leaves the folder as it was. Throws Error(config) for a wrong option, Error(data) for text that cannot be used
/// or changes while it is read, and for shards that would be replaced without `overwrite`.
PrepareResult prepare_text(const PrepareOptions& options);

}  // namespace trainer
