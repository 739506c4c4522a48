// Files that must not be trained on: each is refused with the file, the numbers and what would be right.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>

#include "data/token_shards.h"
#include "tests/data/shard_files.h"
#include "tests/support/errors.h"
#include "tests/support/files.h"

namespace trainer {
namespace {

using testing::bytes_of;
using testing::Hdf5Shard;
using testing::llmc_header;
using testing::write_hdf5;

using Texts = std::vector<std::string>;

std::string open_error(const Texts& patterns, std::int64_t vocab_size = 1000,
                       DataFormat format = DataFormat::automatic) {
  return error_of(ExitCode::data, [&] { TokenDataset::open(patterns, format, vocab_size); });
}

TEST(ShardRefusals, NothingMatches) {
  const TemporaryFolder folder;
  EXPECT_TRUE(mentions(open_error({folder / "train-*.h5"}), {folder / "train-*.h5", "no file matches"}));
  EXPECT_TRUE(mentions(open_error({folder.path()}), {folder.path(), ".h5 or .hdf5 or .bin"}));
  EXPECT_TRUE(mentions(open_error({}), {"no data files"}));
}

TEST(ShardRefusals, OneFileTwice) {
  const TemporaryFolder folder;
  write_hdf5(folder / "a.h5", {.ids = {1}});
  std::filesystem::create_symlink(folder / "a.h5", folder / "b.h5");
  EXPECT_TRUE(mentions(open_error({folder / "*.h5"}), {"a.h5", "b.h5", "same file"}));
}

TEST(ShardRefusals, NotARegularFile) {
  const TemporaryFolder folder;
  ASSERT_EQ(::mkfifo((folder / "pipe.h5").c_str(), 0600), 0);
  std::filesystem::create_directory(folder / "folder.bin");
  EXPECT_TRUE(mentions(open_error({folder / "pipe.h5"}), {"pipe.h5", "not a regular file"}));
  EXPECT_TRUE(mentions(open_error({folder / "*.bin"}), {"folder.bin", "not a regular file"}));
}

TEST(ShardRefusals, UnknownExtensionOrHeader) {
  const TemporaryFolder folder;
  write_file(folder / "tokens.npy", "abc");
  write_file(folder / "raw.bin", bytes_of<std::uint16_t>({1, 2, 3}));
  write_file(folder / "magic.bin", llmc_header(20240521, 1) + bytes_of<std::uint16_t>({1}));
  write_file(folder / "text.h5", "this is not HDF5");
  EXPECT_TRUE(mentions(open_error({folder / "tokens.npy"}), {"tokens.npy", ".npy", "data.format"}));
  EXPECT_TRUE(mentions(open_error({folder / "raw.bin"}), {"raw.bin", "bin_uint16", "20240520", "20240801"}));
  EXPECT_TRUE(mentions(open_error({folder / "magic.bin"}), {"magic.bin", "20240520"}));
  EXPECT_TRUE(mentions(open_error({folder / "text.h5"}), {"text.h5", "16 bytes"}));
}

TEST(ShardRefusals, EmptyFiles) {
  const TemporaryFolder folder;
  for (const char* name : {"zero.h5", "zero.bin"}) {
    write_file(folder / name, "");
    EXPECT_TRUE(mentions(open_error({folder / name}), {name, "empty", "0 bytes"}));
  }
  write_file(folder / "none.bin", llmc_header(20240520, 0));
  write_hdf5(folder / "none.h5", {.ids = {}});
  EXPECT_TRUE(mentions(open_error({folder / "none.bin"}), {"none.bin", "0 tokens"}));
  EXPECT_TRUE(mentions(open_error({folder / "none.h5"}), {"none.h5", "0 elements"}));
}

TEST(ShardRefusals, CountsThatDoNotMatchTheFile) {
  const TemporaryFolder folder;
  write_file(folder / "short.bin", llmc_header(20240520, 5) + bytes_of<std::uint16_t>({1, 2, 3, 4}));
  write_file(folder / "long.bin", llmc_header(20240801, 2) + bytes_of<std::uint32_t>({1, 2, 3}));
  write_file(folder / "negative.bin", llmc_header(20240520, -1) + bytes_of<std::uint16_t>({1}));
  write_file(folder / "odd.bin", "abc");
  EXPECT_TRUE(mentions(open_error({folder / "short.bin"}), {"short.bin", "5 tokens", "1034 bytes", "1032"}));
  EXPECT_TRUE(mentions(open_error({folder / "long.bin"}, 1 << 20), {"long.bin", "2 tokens", "1032 bytes", "1036"}));
  EXPECT_TRUE(mentions(open_error({folder / "negative.bin"}), {"negative.bin", "-1 tokens"}));
  EXPECT_TRUE(mentions(open_error({folder / "odd.bin"}, 1000, DataFormat::bin_uint16), {"odd.bin", "3 bytes"}));
  EXPECT_TRUE(mentions(open_error({folder / "short.bin"}, 1000, DataFormat::hdf5), {"short.bin", "1032 bytes"}));
}

TEST(ShardRefusals, ATruncatedHdf5FileAtAnyLength) {
  const TemporaryFolder folder;
  std::vector<std::int64_t> ids(5000, 7);
  write_hdf5(folder / "whole.h5", {.ids = ids});
  const std::string bytes = read_file(folder / "whole.h5");
  ASSERT_GT(bytes.size(), 10000);
  for (const std::size_t length : {std::size_t{1}, std::size_t{100}, bytes.size() / 2, bytes.size() - 1}) {
    write_file(folder / "cut.h5", bytes.substr(0, length));
    EXPECT_TRUE(mentions(open_error({folder / "cut.h5"}), {"cut.h5", fmt::format("{} bytes", length)}));
  }
}

TEST(ShardRefusals, AnHeaderReadAsTokens) {
  const TemporaryFolder folder;
  write_file(folder / "a.bin", llmc_header(20240520, 2) + bytes_of<std::uint16_t>({1, 2}));
  EXPECT_TRUE(
      mentions(open_error({folder / "a.bin"}, 65536, DataFormat::bin_uint16), {"a.bin", "llm.c header", "auto"}));
}

TEST(ShardRefusals, Hdf5DatasetsOfAnotherKind) {
  const TemporaryFolder folder;
  const std::string path = folder / "a.h5";
  const auto refused = [&](const Hdf5Shard& shard, const Texts& parts) {
    write_hdf5(path, shard);
    const std::string error = open_error({path});
    EXPECT_TRUE(mentions(error, {path}));
    EXPECT_TRUE(mentions(error, parts));
  };
  const std::vector<std::int64_t> ids{1, 2, 3, 4};
  refused({.ids = ids, .tokens_name = "input_ids"}, {"no dataset 'tokens'"});
  refused({.ids = ids, .chunked = true}, {"'tokens'", "h5repack -l CONTI"});
  refused({.ids = ids, .two_dimensional = true}, {"'tokens'", "2 dimensions"});
  refused({.ids = ids, .never_written = true}, {"'tokens'", "never written"});
  refused({.type = Hdf5Shard::Type::f32, .ids = ids}, {"'tokens'", "not an integer", "uint16"});
  refused({.type = Hdf5Shard::Type::i64, .ids = ids}, {"'tokens'", "8 bytes", "signed"});
  refused({.type = Hdf5Shard::Type::i8, .ids = ids}, {"'tokens'", "1 bytes", "signed"});
  refused({.type = Hdf5Shard::Type::u16_big_endian, .ids = ids}, {"'tokens'", "big-endian"});
  refused({.ids = ids, .mask = {1, 1}}, {"'loss_mask'", "2 elements", "must have 4"});
  refused({.ids = ids, .vocab_size = 0}, {"vocab_size", "positive"});
}

TEST(ShardRefusals, AVocabularyThatDoesNotFit) {
  const TemporaryFolder folder;
  write_hdf5(folder / "larger.h5", {.ids = {1}, .vocab_size = 50257});
  write_hdf5(folder / "wrapped.h5", {.ids = {1}, .vocab_size = 128256});
  write_hdf5(folder / "narrow.h5", {.ids = {1}});
  write_hdf5(folder / "bytes.h5", {.type = Hdf5Shard::Type::u8, .ids = {1}});
  write_file(folder / "gpt2.bin", llmc_header(20240520, 1) + bytes_of<std::uint16_t>({1}));
  EXPECT_TRUE(mentions(open_error({folder / "larger.h5"}, 50256), {"larger.h5", "50257", "50256"}));
  EXPECT_TRUE(mentions(open_error({folder / "wrapped.h5"}, 128256), {"wrapped.h5", "128256", "uint16", "uint32"}));
  EXPECT_TRUE(mentions(open_error({folder / "narrow.h5"}, 65537), {"narrow.h5", "uint16", "65536", "65537", "uint32"}));
  EXPECT_TRUE(mentions(open_error({folder / "bytes.h5"}, 257), {"bytes.h5", "uint8", "256", "257"}));
  EXPECT_TRUE(mentions(open_error({folder / "gpt2.bin"}, 128256), {"gpt2.bin", "uint16", "128256"}));
  EXPECT_TRUE(mentions(open_error({folder / "gpt2.bin"}, 128256, DataFormat::bin_uint16), {"gpt2.bin"}));
}

TEST(ShardRefusals, AModelVocabularyBeyond32Bits) {
  const TemporaryFolder folder;
  write_hdf5(folder / "a.h5", {.ids = {1}});
  const std::int64_t vocab = std::int64_t{1} << 31;
  const auto open = [&] { TokenDataset::open({folder / "a.h5"}, DataFormat::automatic, vocab); };
  EXPECT_TRUE(mentions(error_of(ExitCode::config, open), {"model.vocab_size", "2147483648"}));
}

TEST(ShardRefusals, ABadIdIsNamedWithShardAndToken) {
  const TemporaryFolder folder;
  write_hdf5(folder / "a.h5", {.type = Hdf5Shard::Type::i32, .ids = {1, 2, 3}});
  write_hdf5(folder / "b.h5", {.type = Hdf5Shard::Type::i32, .ids = {4, 5, 128256, -7}});
  write_file(folder / "c.bin", llmc_header(20240801, 2) + bytes_of<std::uint32_t>({6, 4000000000}));
  const TokenDataset dataset = TokenDataset::open({folder.path()}, DataFormat::automatic, 128256);
  std::vector<std::int32_t> ids(9);
  dataset.read(0, 5, ids.data(), nullptr);
  EXPECT_EQ(ids[4], 5);
  const auto error = [&](std::int64_t first, std::int64_t count) {
    return error_of(ExitCode::data, [&] { dataset.read(first, count, ids.data(), nullptr); });
  };
  EXPECT_TRUE(mentions(error(2, 5), {"b.h5", "token 2 has id 128256", "0 to 128255"}));
  EXPECT_TRUE(mentions(error(6, 1), {"b.h5", "token 3 has id -7"}));
  EXPECT_TRUE(mentions(error(7, 2), {"c.bin", "token 1 has id 4000000000"}));
  EXPECT_TRUE(mentions(error_of(ExitCode::data, [&] { dataset.scan(); }), {"b.h5", "token 2"}));
}

TEST(ShardRefusals, NoBoundariesOfDocumentsWhereTheyAreNeeded) {
  const TemporaryFolder folder;
  write_hdf5(folder / "none.h5", {.ids = {1, 2}});
  write_file(folder / "a.bin", llmc_header(20240520, 1) + bytes_of<std::uint16_t>({1}));
  const auto open = [&](const char* name, DataFormat format) {
    return error_of(ExitCode::data, [&] { TokenDataset::open({folder / name}, format, 1000, true); });
  };
  const Texts remedy{"data.intra_document_attention", "trainer data prepare"};
  for (const auto& [name, format] :
       {std::pair{"none.h5", DataFormat::automatic}, std::pair{"none.h5", DataFormat::hdf5},
        std::pair{"a.bin", DataFormat::automatic}, std::pair{"a.bin", DataFormat::bin_uint16}}) {
    const std::string error = open(name, format);
    EXPECT_TRUE(mentions(error, {name}));
    EXPECT_TRUE(mentions(error, remedy));
  }
  EXPECT_TRUE(mentions(open("none.h5", DataFormat::automatic), {"doc_offsets"}));
}

TEST(ShardRefusals, BoundariesOfDocumentsThatCannotBe) {
  const TemporaryFolder folder;
  const auto error = [&](const std::vector<std::int64_t>& documents) {
    write_hdf5(folder / "a.h5", {.ids = {1, 2, 3, 4}, .documents = documents});
    TokenDataset::open({folder / "a.h5"}, DataFormat::automatic, 1000);  // nobody looks at them
    return error_of(ExitCode::data, [&] { TokenDataset::open({folder / "a.h5"}, DataFormat::automatic, 1000, true); });
  };
  EXPECT_TRUE(mentions(error({0, 2, 2}), {"a.h5", "doc_offsets", "document 2 begins at token 2, behind one at 2"}));
  EXPECT_TRUE(mentions(error({0, 3, 1}), {"document 2 begins at token 1, behind one at 3"}));
  EXPECT_TRUE(mentions(error({0, 4}), {"document 1 begins at token 4", "4 tokens"}));
  EXPECT_TRUE(mentions(error({-1, 2}), {"document 0 begins at token -1, in a shard of 4 tokens"}));
}

}  // namespace
}  // namespace trainer
