// The text that shards are made from: which files, and the documents in them.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace trainer {

struct TextFile {
  std::string path;
  bool is_jsonl = false;  // a document is a line; otherwise the file
  std::int64_t documents = 0;
  std::int64_t bytes = 0;  // of text in all documents
};

struct SkippedText {
  std::string path;
  std::string why;
  std::int64_t number = 1;  // of files, or of documents in this one
};

struct TextFiles {
  std::vector<TextFile> files;  // sorted by path
  std::vector<SkippedText> skipped;
};

/// The text in `inputs`: files, patterns, and folders with all below them, of which .txt and .jsonl files are taken. A
/// .jsonl file holds a JSON object a line, with the text under `jsonl_key`; any other file is one document. A .txt file
/// is taken whatever its bytes; other files must be UTF-8, so that an image or an archive is not taken for text. Empty
/// files and empty documents are skipped. All but .txt files are read whole. Throws Error(data) naming file and line
/// for what is no text, and when nothing is left.
TextFiles find_text(const std::vector<std::string>& inputs, const std::string& jsonl_key);

struct DocumentReader {
  std::function<void()> begin;                 // of each document
  std::function<void(std::string_view)> text;  // its parts in order
};
/// Reads the documents of a file again. Throws Error(data) when they are not those that were found before.
void read_documents(const TextFile& file, const std::string& jsonl_key, const DocumentReader& reader);

}  // namespace trainer
