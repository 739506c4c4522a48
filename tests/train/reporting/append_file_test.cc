#include "core/train/reporting/append_file.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "core/runtime/check.h"
#include "tests/support/files.h"
#include "tests/train/reporting/full_disk.h"

namespace trainer {
namespace {

TEST(AppendFile, GoesOnBehindWhatIsThere) {
  const TemporaryFolder folder;
  write_file(folder / "f", "old\n");
  AppendFile file(folder / "f");
  file.append("new\n");
  EXPECT_EQ(read_file(folder / "f"), "old\nnew\n");
  EXPECT_EQ(file.missing(), 0);
  EXPECT_EQ(file.problem(), "");
  EXPECT_THROW(AppendFile(folder / "no/such/folder"), Error);
}

TEST(AppendFile, KeepsWhatADiskRefusesAndWritesItLater) {
  const TemporaryFolder folder;
  AppendFile file(folder / "f");
  file.append("one\n");
  {
    const FullDisk full(10);  // within the third record
    file.append("two\n");
    file.append("three\n");
    file.append("four\n");
    EXPECT_EQ(read_file(folder / "f"), "one\ntwo\n") << "a torn record was left";
    EXPECT_EQ(file.missing(), 2);
    EXPECT_EQ(file.problem(), "File too large");
    file.retry();
    EXPECT_EQ(file.missing(), 2);
  }
  file.append("five\n");
  EXPECT_EQ(read_file(folder / "f"), "one\ntwo\nthree\nfour\nfive\n");
  EXPECT_EQ(file.missing(), 0);
  EXPECT_EQ(file.problem(), "");
}

TEST(AppendFile, WhatIsCutByOthersIsNotFilledUp) {
  const TemporaryFolder folder;
  AppendFile file(folder / "f");
  file.append("a long record\n");
  std::filesystem::resize_file(folder / "f", 0);  // to make room
  {
    const FullDisk full(3);
    file.append("next\n");
    EXPECT_EQ(read_file(folder / "f"), "");
  }
  file.retry();
  EXPECT_EQ(read_file(folder / "f"), "next\n");
}

TEST(AppendFile, IsMadeAgainWhenItWasRemoved) {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder / "run");
  AppendFile file(folder / "run/f");
  file.append("one\n");
  std::filesystem::remove(folder / "run/f");
  file.append("two\n");
  EXPECT_EQ(read_file(folder / "run/f"), "two\n");
  std::filesystem::remove_all(folder / "run");
  file.append("three\n");
  EXPECT_EQ(file.missing(), 1);
  EXPECT_EQ(file.problem(), "it was removed: No such file or directory");
  std::filesystem::create_directory(folder / "run");
  file.append("four\n");
  EXPECT_EQ(read_file(folder / "run/f"), "three\nfour\n");
  EXPECT_EQ(file.missing(), 0);
}

TEST(AppendFile, LosesTheOldestOfTooMany) {
  AppendFile file("/dev/full");
  for (std::size_t i = 0; i < AppendFile::kMostWaiting + 5; ++i) file.append("x");
  EXPECT_EQ(file.missing(), static_cast<std::int64_t>(AppendFile::kMostWaiting) + 5);
  EXPECT_EQ(file.problem(), "No space left on device");
}

}  // namespace
}  // namespace trainer
