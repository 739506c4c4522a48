// Text to shards: what was written reads back as the text.
#include "data/prepare.h"

#include <gtest/gtest.h>
#include <hdf5.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <functional>
#include <limits>

#include "data/byte_tokenizer.h"
#include "data/token_shards.h"
#include "tests/data/shard_files.h"
#include "tests/support/errors.h"
#include "tests/support/files.h"

namespace trainer {
namespace {

std::vector<std::int32_t> read_ids(const std::string& pattern) {
  const TokenDataset dataset = TokenDataset::open({pattern}, DataFormat::automatic, ByteTokenizer::vocab_size);
  std::vector<std::int32_t> ids(static_cast<std::size_t>(dataset.num_tokens()));
  dataset.read(0, dataset.num_tokens(), ids.data(), nullptr);
  return ids;
}

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

std::string all_bytes() {
  std::string text;
  for (int c = 0; c < 256; ++c) text.push_back(static_cast<char>(c));
  return text;
}

TEST(ByteTokenizer, EveryByteIsItself) {
  const std::string text = all_bytes();
  std::vector<std::int32_t> ids = ByteTokenizer::encode(text);
  ASSERT_EQ(ids.size(), 256);
  for (std::int32_t i = 0; i < 256; ++i) EXPECT_EQ(ids[static_cast<std::size_t>(i)], i);
  ids.push_back(ByteTokenizer::end_of_text);
  EXPECT_EQ(ByteTokenizer::decode(ids), text);
  EXPECT_TRUE(
      mentions(error_of(ExitCode::data, [] { ByteTokenizer::decode(std::vector<std::int32_t>{257}); }), {"257"}));
}

TEST(Prepare, ShardsReadBackAsTheTextWithItsTailHeldOut) {
  const TemporaryFolder folder;
  const std::string first = all_bytes(), second = "the second document\n";
  write_file(folder / "a.txt", first);
  write_file(folder / "b.txt", second);
  const PrepareResult result = prepare_text(
      {.inputs = {folder / "*.txt"}, .output_dir = folder / "out", .validation_fraction = 0.1, .shard_tokens = 100});
  // 256 + 1 + 20 tokens, of which the last 27 are held out.
  EXPECT_EQ(result.documents, 2);
  EXPECT_EQ(result.source_bytes, 276);
  EXPECT_EQ(result.train_tokens, 250);
  EXPECT_EQ(result.validation_tokens, 27);
  EXPECT_EQ(result.vocab_size, 257);
  ASSERT_EQ(result.train.size(), 3);
  ASSERT_EQ(result.validation.size(), 1);
  EXPECT_EQ(result.train[2].tokens, 50);
  EXPECT_EQ(result.validation[0].tokens, 27);
  EXPECT_EQ(names_in(folder / "out"),
            (std::vector<std::string>{"train-00000.h5", "train-00001.h5", "train-00002.h5", "validation-00000.h5"}));

  std::vector<std::int32_t> expected = ByteTokenizer::encode(first);
  expected.push_back(ByteTokenizer::end_of_text);
  for (const std::int32_t id : ByteTokenizer::encode(second)) expected.push_back(id);
  EXPECT_EQ(read_ids(folder / "out/train-*.h5"), std::vector<std::int32_t>(expected.begin(), expected.end() - 27));
  EXPECT_EQ(read_ids(folder / "out/validation-*.h5"), std::vector<std::int32_t>(expected.end() - 27, expected.end()));
  EXPECT_EQ(ByteTokenizer::decode(read_ids(folder / "out")), first + second);
}

/// Shards of 4 tokens: documents of 2 + 1, 9 + 1, 1 + 1 and 2 tokens, ends of text counted.
TEST(Prepare, ShardsSayWhereDocumentsBegin) {
  const TemporaryFolder folder;
  write_file(folder / "a.jsonl", R"({"text": "ab"}
{"text": "123456789"}
{"text": "x"}
{"text": "yz"}
)");
  prepare_text(
      {.inputs = {folder / "a.jsonl"}, .output_dir = folder / "out", .validation_fraction = 0.2, .shard_tokens = 4});
  const auto starts = [&](const std::string& pattern) {
    const TokenDataset dataset =
        TokenDataset::open({folder / pattern}, DataFormat::automatic, ByteTokenizer::vocab_size, true);
    std::vector<std::int32_t> found;
    dataset.document_starts(0, dataset.num_tokens(), 100, found);
    return found;
  };
  EXPECT_EQ(starts("out/train-00001.h5"), std::vector<std::int32_t>{});
  EXPECT_EQ(starts("out/train-*.h5"), (std::vector<std::int32_t>{100, 103, 113}));
  EXPECT_EQ(starts("out/validation-*.h5"), std::vector<std::int32_t>{101});  // of the last 3 of 17 tokens
}

TEST(Prepare, ShardsSayWhatTheyAre) {
  const TemporaryFolder folder;
  write_file(folder / "a.txt", "0123");
  write_file(folder / "b.txt", "567");
  prepare_text({.inputs = {folder.path()},
                .output_dir = folder / "out",
                .validation_fraction = 0,
                .shard_tokens = std::numeric_limits<std::int64_t>::max()});
  const hid_t file = H5Fopen((folder / "out/train-00000.h5").c_str(), H5F_ACC_RDONLY, H5P_DEFAULT);
  const auto read_integer = [&](const char* name) {
    std::int64_t value = -1;
    const hid_t attribute = H5Aopen(file, name, H5P_DEFAULT);
    H5Aread(attribute, H5T_NATIVE_INT64, &value);
    H5Aclose(attribute);
    return value;
  };
  EXPECT_EQ(read_integer("vocab_size"), 257);
  EXPECT_EQ(read_integer("source_bytes"), 7);
  char tokenizer[6] = "";
  const hid_t attribute = H5Aopen(file, "tokenizer", H5P_DEFAULT);
  const hid_t text = H5Aget_type(attribute);
  ASSERT_EQ(H5Tget_size(text), sizeof tokenizer);
  H5Aread(attribute, text, tokenizer);
  EXPECT_STREQ(tokenizer, "bytes");
  std::uint64_t offsets[2] = {};
  const hid_t dataset = H5Dopen2(file, "doc_offsets", H5P_DEFAULT);
  H5Dread(dataset, H5T_NATIVE_UINT64, H5S_ALL, H5S_ALL, H5P_DEFAULT, offsets);
  EXPECT_EQ(offsets[0], 0);
  EXPECT_EQ(offsets[1], 5);  // behind "0123" and the end of text
  H5Dclose(dataset);
  H5Tclose(text);
  H5Aclose(attribute);
  H5Fclose(file);
}

// ---- Which text --------------------------------------------------------------------------------

PrepareResult prepare(const TemporaryFolder& folder, const std::vector<std::string>& inputs,
                      const std::string& key = "text") {
  return prepare_text(
      {.inputs = inputs, .output_dir = folder / "out", .jsonl_key = key, .validation_fraction = 0, .overwrite = true});
}

/// "path: why" of what was skipped, relative to the folder.
std::vector<std::string> skipped_in(const PrepareResult& result, const TemporaryFolder& folder) {
  std::vector<std::string> lines;
  for (const SkippedText& one : result.text.skipped)
    lines.push_back(fmt::format("{} x {}: {}", one.number, one.path.substr(folder.path().size() + 1),
                                one.why.substr(0, one.why.find(':'))));
  std::sort(lines.begin(), lines.end());
  return lines;
}

TEST(PrepareJsonl, EachLineIsADocument) {
  const TemporaryFolder folder;
  write_file(folder / "a.jsonl",
             "{\"id\": 1, \"text\": \"first\\n\\u00e9\"}\n"
             "\n"
             "{\"text\": \"\", \"id\": 2}\r\n"
             "  {\"text\": \"second\", \"more\": {\"text\": [1]}}\r\n"
             "{\"text\": \"no line end\"}");
  write_file(folder / "b.txt", "file");
  const PrepareResult result = prepare(folder, {folder / "a.jsonl", folder / "b.txt"});
  EXPECT_EQ(result.documents, 4);
  EXPECT_EQ(result.source_bytes, 8 + 6 + 11 + 4);
  EXPECT_EQ(result.train_tokens, 8 + 1 + 6 + 1 + 11 + 1 + 4);
  EXPECT_EQ(result.text.files[0].documents, 3);
  EXPECT_EQ(skipped_in(result, folder), (std::vector<std::string>{"1 x a.jsonl: a document without text"}));
  std::vector<std::int32_t> expected;
  for (const std::string text : {"first\n\xc3\xa9", "second", "no line end", "file"}) {
    if (!expected.empty()) expected.push_back(ByteTokenizer::end_of_text);
    for (const std::int32_t id : ByteTokenizer::encode(text)) expected.push_back(id);
  }
  EXPECT_EQ(read_ids(folder / "out"), expected);
}

TEST(PrepareJsonl, FaultsNameFileAndLine) {
  const TemporaryFolder folder;
  const auto refused = [&](const std::string& second_line, const std::vector<std::string>& parts) {
    write_file(folder / "a.jsonl", "{\"text\": \"good\"}\n" + second_line + "\n");
    const std::string error = error_of(ExitCode::data, [&] { prepare(folder, {folder / "a.jsonl"}); });
    EXPECT_TRUE(mentions(error, {"a.jsonl:2: "})) << second_line;
    EXPECT_TRUE(mentions(error, parts)) << second_line;
    EXPECT_LT(error.size(), 600) << "a long line is not shown whole";
  };
  refused("{\"text\": \"good\"", {"is not JSON at column 16", "unexpected end of input"});
  refused("{'text': 'quotes'}", {"is not JSON at column 2"});
  refused("[\"text\"]", {"is JSON, but array"});
  refused("\"text\"", {"is JSON, but string"});
  refused("{\"content\": \"good\", \"id\": 1}", {"has no key 'text'", "'content', 'id'", "--jsonl-key"});
  refused("{}", {"has no key 'text'; it has none"});
  refused("{\"text\": null}", {"key 'text' is of type null"});
  refused("{\"text\": \"caf\xe9\"}", {"not text in UTF-8: byte 0xe9 at column 14"});
  refused("{\"text\": \"\\ud800\"}", {"is not JSON"});
  refused("{\"text\": \"good\", \"id\": 1e400}", {"number that float64 cannot hold", "'1e400'"});
  refused("{\"text\": \"" + std::string(5000, 'x') + "\\q\"}", {"forbidden character after backslash"});
  refused("{\"" + std::string(5000, 'x') + "\": 1}", {"has no key 'text'", "..."});
  refused("{\"\\u001b[31mred\": 1}", {"it has '\\x1b[31mred'"});
  EXPECT_FALSE(std::filesystem::exists(folder / "out"));
  write_file(folder / "a.jsonl", "{\"content\": \"good\"}\n");
  EXPECT_EQ(prepare(folder, {folder / "a.jsonl"}, "content").source_bytes, 4);
}

TEST(PrepareText, FoldersAreEnteredAndWhatIsSkippedIsSaid) {
  const TemporaryFolder folder;
  for (const char* name : {"in/deep/er", "in/.git", "in/images"}) std::filesystem::create_directories(folder / name);
  write_file(folder / "in/b.txt", "b");
  write_file(folder / "in/deep/er/a.txt", "a");
  write_file(folder / "in/deep/c.jsonl", "{\"text\": \"c\"}\n");
  write_file(folder / "in/.git/hidden.txt", "no");
  write_file(folder / "in/images/one.png", "\x89PNG");
  write_file(folder / "in/README.md", "# r");
  write_file(folder / "in/NOTES", "n");
  write_file(folder / "in/empty.txt", "");
  std::filesystem::create_directory_symlink(folder.path(), folder / "in/up");
  std::filesystem::create_symlink("nowhere", folder / "in/lost.txt");
  PrepareResult result = prepare(folder, {folder / "in"});
  EXPECT_EQ(ByteTokenizer::decode(read_ids(folder / "out")), "bca");
  EXPECT_EQ(skipped_in(result, folder),
            (std::vector<std::string>{"1 x in/.git: hidden", "1 x in/NOTES: no extension", "1 x in/README.md: .md",
                                      "1 x in/empty.txt: empty (0 bytes)", "1 x in/images/one.png: .png",
                                      "1 x in/lost.txt: not a regular file", "1 x in/up: a link to a folder"}));
  // What is named is taken, also beside its folder; a folder that a pattern matches is not entered.
  result = prepare(folder, {folder / "in", folder / "in/README.md"});
  EXPECT_EQ(ByteTokenizer::decode(read_ids(folder / "out")), "# rbca");
  EXPECT_EQ(result.text.skipped.size(), 6);
  std::filesystem::remove(folder / "in/lost.txt");
  result = prepare(folder, {folder / "in/*.[tm]*", folder / "in/im*", folder / "in/NOTES"});
  EXPECT_EQ(ByteTokenizer::decode(read_ids(folder / "out")), "n# rb");
  EXPECT_EQ(skipped_in(result, folder), (std::vector<std::string>{"1 x in/empty.txt: empty (0 bytes)",
                                                                  "1 x in/images: a folder that a pattern matches"}));
}

TEST(PrepareText, RefusesWhatIsNone) {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder / "images");
  write_file(folder / "images/one.png", "line 1\nline \x89PNG\n");
  write_file(folder / "zeros", std::string(10, '\0'));
  write_file(folder / "latin.txt", "caf\xe9");
  const auto refused = [&](const std::string& input, const std::vector<std::string>& parts) {
    EXPECT_TRUE(mentions(error_of(ExitCode::data, [&] { prepare(folder, {folder / input}); }), parts));
  };
  refused("images", {"images: the folder holds no .txt or .jsonl file", "1 other skipped"});
  refused("images/one.png", {"one.png:2: is not text in UTF-8: byte 0x89 at column 6"});
  refused("zeros", {"zeros:1: ", "byte 0x00"});
  EXPECT_EQ(prepare(folder, {folder / "latin.txt"}).source_bytes, 4) << ".txt files are taken byte for byte";
}

TEST(Prepare, OverwritesOnlyWhenAskedAndThenCompletely) {
  const TemporaryFolder folder;
  const std::string out = folder / "out";
  write_file(folder / "a.txt", std::string(50, 'a'));
  PrepareOptions options{.inputs = {folder / "a.txt"}, .output_dir = out, .validation_fraction = 0, .shard_tokens = 10};
  prepare_text(options);
  write_file(out + "/train-custom.h5", "kept");
  write_file(folder / "a.txt", std::string(25, 'b'));
  EXPECT_TRUE(
      mentions(error_of(ExitCode::data, [&] { prepare_text(options); }), {"train-00000.h5", "exists", "5 shards"}));
  EXPECT_EQ(ByteTokenizer::decode(read_ids(out + "/train-0*.h5")), std::string(50, 'a'));
  options.overwrite = true;
  prepare_text(options);
  EXPECT_EQ(names_in(out),
            (std::vector<std::string>{"train-00000.h5", "train-00001.h5", "train-00002.h5", "train-custom.h5"}));
  EXPECT_EQ(ByteTokenizer::decode(read_ids(out + "/train-0*.h5")), std::string(25, 'b'));
}

TEST(Prepare, RefusesWhatItCannotDo) {
  const TemporaryFolder folder;
  write_file(folder / "a.txt", "some text");
  write_file(folder / "empty.txt", "");
  write_file(folder / "file", "");
  const PrepareOptions good{.inputs = {folder / "a.txt"}, .output_dir = folder / "out", .validation_fraction = 0.5};
  const auto refused = [&](auto change, ExitCode code, const std::vector<std::string>& parts) {
    PrepareOptions options = good;
    change(options);
    EXPECT_TRUE(mentions(error_of(code, [&] { prepare_text(options); }), parts));
  };
  refused([&](auto& o) { o.inputs = {folder / "none.txt"}; }, ExitCode::data, {"none.txt"});
  refused([&](auto& o) { o.inputs = {folder / "empty.txt"}; }, ExitCode::data, {"empty.txt", "0 bytes"});
  refused([&](auto& o) { o.validation_fraction = 0.01; }, ExitCode::data, {"0.01", "9 tokens"});
  refused([&](auto& o) { o.output_dir = folder / "file"; }, ExitCode::data, {"file"});
  refused([&](auto& o) { o.validation_fraction = 1; }, ExitCode::config, {"validation fraction", "1"});
  refused([&](auto& o) { o.validation_fraction = -0.5; }, ExitCode::config, {"-0.5"});
  refused([&](auto& o) { o.shard_tokens = 0; }, ExitCode::config, {"0 tokens a shard"});
  refused([&](auto& o) { o.output_dir = ""; }, ExitCode::config, {"output folder"});
  refused([&](auto& o) { o.tokenizer = "words"; }, ExitCode::config, {"'words'", "'bytes'"});
  EXPECT_FALSE(std::filesystem::exists(folder / "out"));
}

TEST(Prepare, AnErrorHalfwayLeavesNothingBehind) {
  const TemporaryFolder folder;
  write_file(folder / "a.txt", std::string(100, 'a'));
  std::filesystem::create_directories(folder / "out/train-00003.h5.tmp");  // in the way of the fourth shard
  const PrepareOptions options{
      .inputs = {folder / "a.txt"}, .output_dir = folder / "out", .validation_fraction = 0, .shard_tokens = 10};
  EXPECT_TRUE(mentions(error_of(ExitCode::data, [&] { prepare_text(options); }),
                       {"train-00003.h5.tmp", "cannot be written", "Is a directory"}));
  EXPECT_EQ(names_in(folder / "out"), (std::vector<std::string>{"train-00003.h5.tmp"}));
}

/// In a process of its own, which ends as programs do: HDF5 must not stumble over the files that it could not write.
void expect_ends_well(const std::function<bool()>& body) {
  const pid_t pid = fork();
  if (pid == 0) std::exit(body() ? 0 : 1);
  int status = 0;
  ASSERT_EQ(waitpid(pid, &status, 0), pid);
  EXPECT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(Prepare, AFullDiskLeavesNothingBehind) {
  const TemporaryFolder folder;
  write_file(folder / "a.txt", std::string(10000, 'a'));
  const std::filesystem::path disk = folder / "disk";
  std::filesystem::create_directory(disk);
  const PrepareOptions options{
      .inputs = {folder / "a.txt"}, .output_dir = (disk / "out").string(), .validation_fraction = 0};
  for (const int kilobytes : {4, 8, 12, 16, 20}) {
    SCOPED_TRACE(kilobytes);
    const std::string size = fmt::format("size={}k", kilobytes);
    if (mount("tmpfs", disk.c_str(), "tmpfs", 0, size.c_str()) != 0)
      GTEST_SKIP() << "this process may not mount a tmpfs";
    if (kilobytes == 4) write_file((disk / "all of it").string(), std::string(4096, 'x'));
    expect_ends_well([&] {
      return mentions(error_of(ExitCode::data, [&] { prepare_text(options); }),
                      {"train-00000.h5.tmp: cannot be written"}) &&
             names_in((disk / "out").string()).empty();
    });
    umount(disk.c_str());
  }
}

}  // namespace
}  // namespace trainer
