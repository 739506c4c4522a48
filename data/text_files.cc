#include "data/text_files.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <system_error>

#include "core/runtime/check.h"
#include "core/runtime/counted.h"
#include "data/files.h"
#include "data/jsonl.h"
#include "data/text_line.h"

namespace trainer {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPlain = ".txt";
constexpr const char* kJsonl = ".jsonl";

/// Why a folder's entry is not taken; empty: it is, or it is a folder that is entered.
std::string why_not(const fs::directory_entry& entry) {
  std::error_code ignored;
  if (entry.path().filename().native().front() == '.') return "hidden";
  if (entry.is_directory(ignored)) return entry.is_symlink(ignored) ? "a link to a folder" : "";
  const std::string extension = entry.path().extension().native();
  if (extension == kPlain || extension == kJsonl) return entry.is_regular_file(ignored) ? "" : "not a regular file";
  return fmt::format("{}: in a folder only {} and {} files are taken; name others, or a pattern",
                     extension.empty() ? "no extension" : extension, kPlain, kJsonl);
}

std::vector<std::string> list_folder(const std::string& folder, std::vector<SkippedText>& skipped) {
  std::vector<std::string> files;
  const std::size_t skipped_before = skipped.size();
  std::error_code error;
  std::string path = folder;  // of the newest entry: a folder that cannot be read is met when it is entered
  for (fs::recursive_directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    path = entry->path().native();
    if (const std::string why = why_not(*entry); !why.empty()) {
      skipped.push_back({path, why});
      entry.disable_recursion_pending();
    } else if (std::error_code ignored; !entry->is_directory(ignored)) {
      files.push_back(path);
    }
  }
  if (error) fail(ExitCode::data, "{}: the folder cannot be read: {}", path, error.message());
  if (files.empty())
    fail(ExitCode::data, "{}: the folder holds no {} or {} file, nor does a folder below it ({} skipped)", folder,
         kPlain, kJsonl, counted(std::ssize(skipped) - static_cast<std::int64_t>(skipped_before), "other"));
  return files;
}

std::int64_t size_of(const std::string& path) {
  std::error_code error;
  if (!fs::is_regular_file(path, error)) fail(ExitCode::data, "{}: is not a regular file", path);
  const std::uintmax_t bytes = fs::file_size(path, error);
  if (error) fail(ExitCode::data, "{}: cannot be read: {}", path, error.message());
  return static_cast<std::int64_t>(bytes);
}

/// Counts documents and bytes.
void survey(TextFile& file, const std::string& jsonl_key, std::vector<SkippedText>& skipped) {
  std::error_code ignored;
  if (fs::is_directory(file.path, ignored))
    return skipped.push_back({file.path, "a folder that a pattern matches: name it to take what is in it"});
  const std::int64_t size = size_of(file.path);
  if (size == 0) return skipped.push_back({file.path, "empty (0 bytes)"});
  if (!file.is_jsonl) {
    if (fs::path(file.path).extension() == kPlain)
      open_text(file.path);  // that it may be read is known before anything is written
    else
      for_each_line(file.path, [](const TextLine& line) { line.check_utf8(); });
    file.documents = 1;
    file.bytes = size;
    return;
  }
  std::int64_t empty = 0;
  for_each_jsonl_text(file.path, jsonl_key, [&](std::string_view text) {
    ++(text.empty() ? empty : file.documents);
    file.bytes += std::ssize(text);
  });
  if (empty > 0) skipped.push_back({file.path, "a document without text", empty});
  if (empty + file.documents == 0) skipped.push_back({file.path, "a file without documents"});
}

void read_plain(const TextFile& file, const DocumentReader& reader) {
  constexpr std::int64_t kPiece = 1 << 20;
  std::ifstream in = open_text(file.path);
  std::string buffer;
  std::int64_t left = file.bytes;
  reader.begin();
  while (left > 0) {
    buffer.resize(static_cast<std::size_t>(std::min(left, kPiece)));
    in.read(buffer.data(), std::ssize(buffer));
    if (in.gcount() != std::ssize(buffer))
      fail(ExitCode::data, "{}: only {} of its {} bytes can be read: did it change?", file.path,
           file.bytes - left + in.gcount(), file.bytes);
    reader.text(buffer);
    left -= std::ssize(buffer);
  }
  if (in.peek() != std::ifstream::traits_type::eof())
    fail(ExitCode::data, "{}: grew beyond {} bytes while it was read", file.path, file.bytes);
}

void read_jsonl(const TextFile& file, const std::string& jsonl_key, const DocumentReader& reader) {
  std::int64_t documents = 0, bytes = 0;
  const auto check = [&](bool as_before) {
    if (!as_before)
      fail(ExitCode::data, "{}: changed while it was read: it had {} documents with {} bytes of text", file.path,
           file.documents, file.bytes);
  };
  for_each_jsonl_text(file.path, jsonl_key, [&](std::string_view text) {
    if (text.empty()) return;
    ++documents;
    bytes += std::ssize(text);
    check(documents <= file.documents && bytes <= file.bytes);
    reader.begin();
    reader.text(text);
  });
  check(documents == file.documents && bytes == file.bytes);
}

}  // namespace

TextFiles find_text(const std::vector<std::string>& inputs, const std::string& jsonl_key) {
  TextFiles found;
  const std::vector<std::string> paths =
      expand_patterns(inputs, [&](const std::string& folder) { return list_folder(folder, found.skipped); });
  // What the listing of a folder passed over may have been named besides.
  const std::set<std::string> named(paths.begin(), paths.end());
  std::erase_if(found.skipped, [&](const SkippedText& one) { return named.contains(one.path); });
  for (const std::string& path : paths) {
    TextFile file{.path = path, .is_jsonl = fs::path(path).extension() == kJsonl};
    survey(file, jsonl_key, found.skipped);
    if (file.documents > 0) found.files.push_back(file);
  }
  if (found.files.empty()) {
    const SkippedText& one = found.skipped.back();
    fail(ExitCode::data, "there is no text in what was given: {}: {}", one.path, one.why);
  }
  return found;
}

void read_documents(const TextFile& file, const std::string& jsonl_key, const DocumentReader& reader) {
  if (file.is_jsonl)
    read_jsonl(file, jsonl_key, reader);
  else
    read_plain(file, reader);
}

}  // namespace trainer
