// Reading shards: every format gives back the ids that were stored, also across files.
#include "data/token_shards.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <numeric>

#include "data/shard_writer.h"
#include "tests/data/shard_files.h"
#include "tests/support/errors.h"
#include "tests/support/files.h"

namespace trainer {
namespace {

using testing::bytes_of;
using testing::Hdf5Shard;
using testing::llmc_header;
using testing::write_hdf5;

std::vector<std::int64_t> read_all(const TokenDataset& dataset) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(dataset.num_tokens()));
  dataset.read(0, dataset.num_tokens(), ids.data(), nullptr);
  return {ids.begin(), ids.end()};
}

TEST(TokenShards, EveryFormatGivesBackItsIds) {
  const TemporaryFolder folder;
  const std::vector<std::int64_t> narrow{0, 255, 7}, middle{0, 65535, 256, 1}, wide{65535, 65536, 128255, 0};
  write_hdf5(folder / "u8.h5", {.type = Hdf5Shard::Type::u8, .ids = narrow});
  write_hdf5(folder / "u16.hdf5", {.type = Hdf5Shard::Type::u16, .ids = middle});
  write_hdf5(folder / "u32.h5", {.type = Hdf5Shard::Type::u32, .ids = wide});
  write_hdf5(folder / "i32.h5", {.type = Hdf5Shard::Type::i32, .ids = wide});
  write_file(folder / "llmc16.bin", llmc_header(20240520, 4) + bytes_of<std::uint16_t>(middle));
  write_file(folder / "llmc32.bin", llmc_header(20240801, 4) + bytes_of<std::uint32_t>(wide));
  write_file(folder / "raw16.bin", bytes_of<std::uint16_t>(middle));
  write_file(folder / "raw32.bin", bytes_of<std::uint32_t>(wide));
  const auto read = [&](const std::string& name, DataFormat format, std::int64_t vocab) {
    return read_all(TokenDataset::open({folder / name}, format, vocab));
  };
  EXPECT_EQ(read("u8.h5", DataFormat::automatic, 256), narrow);
  EXPECT_EQ(read("u16.hdf5", DataFormat::automatic, 65536), middle);
  EXPECT_EQ(read("u32.h5", DataFormat::automatic, 128256), wide);
  EXPECT_EQ(read("i32.h5", DataFormat::hdf5, 128256), wide);
  EXPECT_EQ(read("llmc16.bin", DataFormat::automatic, 65536), middle);
  EXPECT_EQ(read("llmc32.bin", DataFormat::automatic, 128256), wide);
  EXPECT_EQ(read("raw16.bin", DataFormat::bin_uint16, 65536), middle);
  EXPECT_EQ(read("raw32.bin", DataFormat::bin_uint32, 128256), wide);
}

TEST(TokenShards, ANarrowShardThatSaysItsVocabularyServesALargerModel) {
  const TemporaryFolder folder;
  write_hdf5(folder / "a.h5", {.type = Hdf5Shard::Type::u8, .ids = {200}, .vocab_size = 256});
  write_hdf5(folder / "b.h5", {.type = Hdf5Shard::Type::u16, .ids = {65535}, .vocab_size = 65536});
  EXPECT_EQ(read_all(TokenDataset::open({folder.path()}, DataFormat::automatic, 128256)),
            (std::vector<std::int64_t>{200, 65535}));
}

TEST(TokenShards, TheWriterStoresIdsExactlyInBothWidths) {
  const TemporaryFolder folder;
  for (const std::int64_t vocab : {65536, 128256}) {
    const std::vector<std::int32_t> ids{0, 65535, static_cast<std::int32_t>(vocab - 1), 3, 256};
    const std::vector<std::uint8_t> mask{1, 0, 1, 1, 0};
    const std::string path = folder / "shard.h5";
    ShardWriter writer(path, {.tokens = 5, .vocab_size = vocab, .tokenizer = "none", .loss_mask = true});
    writer.append(std::span(ids).first(2), std::span(mask).first(2));
    writer.append(std::span(ids).last(3), std::span(mask).last(3));
    writer.finish();
    writer.publish();
    const TokenDataset dataset = TokenDataset::open({path}, DataFormat::automatic, vocab);
    EXPECT_EQ(dataset.shards().front().type, vocab == 65536 ? IdType::u16 : IdType::u32);
    EXPECT_EQ(dataset.shards().front().vocab_size, vocab);
    std::vector<std::int32_t> read_ids(5);
    std::vector<std::uint8_t> read_mask(5);
    dataset.read(0, 5, read_ids.data(), read_mask.data());
    EXPECT_EQ(read_ids, ids);
    EXPECT_EQ(read_mask, mask);
  }
}

TEST(TokenShards, AWriterThatDoesNotFinishLeavesNoFile) {
  const TemporaryFolder folder;
  {
    ShardWriter writer(folder / "shard.h5", {.tokens = 5, .vocab_size = 10, .tokenizer = "none"});
    writer.append(std::vector<std::int32_t>{1, 2});
    EXPECT_EQ(writer.tokens_left(), 3);
    EXPECT_TRUE(std::filesystem::exists(folder / "shard.h5.tmp"));
    const std::string error = error_of(ExitCode::data, [&] { writer.append(std::vector<std::int32_t>{9, 10}); });
    EXPECT_TRUE(mentions(error, {"shard.h5", "id 10", "token 3", "vocabulary of 10"}));
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(TokenShards, EveryWindowAcrossShardBordersIsThatOfTheWholeSequence) {
  const TemporaryFolder folder;
  // Shards of 1, 4, 1 and 3 tokens in three formats; token i of the sequence has id 10 + i, masked where i % 3 == 1.
  write_hdf5(folder / "a.h5", {.ids = {10}, .mask = {1}});
  write_file(folder / "b.bin", llmc_header(20240520, 4) + bytes_of<std::uint16_t>({11, 12, 13, 14}));
  write_hdf5(folder / "c.h5", {.type = Hdf5Shard::Type::i32, .ids = {15}, .mask = {255}});
  write_hdf5(folder / "d.h5", {.type = Hdf5Shard::Type::u8, .ids = {16, 17, 18}, .mask = {0, 1, 0}});
  const std::vector<std::uint8_t> masks{1, 1, 1, 1, 1, 1, 0, 1, 0};
  const TokenDataset dataset = TokenDataset::open({folder.path()}, DataFormat::automatic, 100);
  ASSERT_EQ(dataset.num_tokens(), 9);
  for (std::int64_t first = 0; first <= 9; ++first) {
    for (std::int64_t count = 0; first + count <= 9; ++count) {
      std::vector<std::int32_t> ids(static_cast<std::size_t>(count)), expected(ids.size());
      std::vector<std::uint8_t> mask(ids.size());
      dataset.read(first, count, ids.data(), mask.data());
      std::iota(expected.begin(), expected.end(), static_cast<std::int32_t>(10 + first));
      EXPECT_EQ(ids, expected) << first << "+" << count;
      EXPECT_TRUE(std::equal(mask.begin(), mask.end(), masks.begin() + first)) << first << "+" << count;
    }
  }
  const DatasetSummary summary = dataset.scan();
  EXPECT_EQ(summary.tokens, 9);
  EXPECT_EQ(summary.target_tokens, 7);
  EXPECT_EQ(summary.largest_id, 18);
}

TEST(TokenShards, FilesFoldersAndPatternsAreReadInSortedOrder) {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder / "more");
  std::filesystem::create_directory(folder / "more/deeper");
  write_hdf5(folder / "part-2.h5", {.ids = {2}});
  write_hdf5(folder / "part-1.h5", {.ids = {1}});
  write_hdf5(folder / "other.h5", {.ids = {3}});
  write_hdf5(folder / "more/y.h5", {.ids = {5}});
  write_hdf5(folder / "more/x.hdf5", {.ids = {4}});
  write_hdf5(folder / "more/.hidden.h5", {.ids = {6}});
  write_file(folder / "more/notes.txt", "not a shard");
  const auto read = [](const std::vector<std::string>& patterns) {
    return read_all(TokenDataset::open(patterns, DataFormat::automatic, 100));
  };
  using Ids = std::vector<std::int64_t>;
  EXPECT_EQ(read({folder / "part-*.h5"}), (Ids{1, 2}));
  EXPECT_EQ(read({folder / "part-2.h5", folder / "part-1.h5"}), (Ids{1, 2}));
  EXPECT_EQ(read({folder / "more"}), (Ids{4, 5}));
  EXPECT_EQ(read({folder / "part-[2-9].h5", folder / "more", folder / "o*.h5"}), (Ids{4, 5, 3, 2}));
}

}  // namespace
}  // namespace trainer
