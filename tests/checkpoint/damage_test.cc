// Damage is found before any value is handed out, by name, and the checkpoint before is taken.
#include <sys/stat.h>

#include <filesystem>

#include "core/checkpoint/checksum.h"
#include "core/checkpoint/manifest.h"
#include "tests/checkpoint/support.h"
#include "tests/support/errors.h"
#include "tests/support/files.h"

namespace trainer::checkpoint_test {
namespace {

namespace fs = std::filesystem;

/// Checkpoints of steps 1 and 2; a test damages the second.
class Damage : public testing::Test {
 protected:
  Damage() {
    save_step(folder_.path(), 1);
    save_step(folder_.path(), 2);
  }
  std::string newest(const std::string& file) const { return folder_ / ("step_00000002/" + file); }

  /// load: auto takes step 1, whole, and its one warning names step 2 and the reason.
  void expect_fallback(const std::string& reason) const {
    std::vector<std::string> warnings;
    const auto info = find_auto(folder_.path(), &warnings);
    ASSERT_TRUE(info.has_value());
    EXPECT_EQ(info->manifest.step, 1);
    ASSERT_EQ(warnings.size(), 1u);
    EXPECT_TRUE(mentions(warnings[0], {"step_00000002"}));
    EXPECT_TRUE(mentions(warnings[0], {reason}));
  }
  /// The same damage when the checkpoint is asked for by its path.
  void expect_refused(const std::string& reason) const {
    SelfCommunicator world("world");
    const std::string message = error_of(
        ExitCode::checkpoint, [&] { find_checkpoint("", folder_ / "step_00000002", world, [](const auto&) {}); });
    EXPECT_TRUE(mentions(message, {"step_00000002"}));
    EXPECT_TRUE(mentions(message, {reason}));
  }

  TemporaryFolder folder_;
};

TEST_F(Damage, NoneIsReportedForSoundOnes) {
  std::vector<std::string> warnings;
  const auto info = find_auto(folder_.path(), &warnings);
  ASSERT_TRUE(info.has_value());
  EXPECT_EQ(info->manifest.step, 2);
  EXPECT_TRUE(warnings.empty());
  expect_content(*info);
}

TEST_F(Damage, EveryBitOfTheManifest) {
  const std::string text = read_file(newest("manifest.json"));
  parse_manifest(text, "manifest");
  for (std::size_t byte = 0; byte < text.size(); ++byte)
    for (int bit = 0; bit < 8; ++bit) {
      std::string damaged = text;
      damaged[byte] = static_cast<char>(damaged[byte] ^ (1 << bit));
      EXPECT_THROW(parse_manifest(damaged, "manifest"), Error) << "byte " << byte << " bit " << bit;
    }
  Random random(1);
  for (int trial = 0; trial < 10; ++trial) {
    write_file(newest("manifest.json"), text);
    flip_bit(newest("manifest.json"), random.between(0, static_cast<std::int64_t>(text.size()) - 1), trial % 8);
    expect_fallback("manifest.json is damaged");
  }
  expect_refused("manifest.json is damaged");
}

TEST_F(Damage, EveryTruncationOfTheManifest) {
  const std::string text = read_file(newest("manifest.json"));
  for (std::size_t size = 0; size < text.size(); ++size)
    EXPECT_THROW(parse_manifest(std::string_view(text).substr(0, size), "manifest"), Error) << size;
  EXPECT_THROW(parse_manifest(text + "\n", "manifest"), Error);
}

TEST_F(Damage, FlippedBitsAnywhereInARankFile) {
  const std::string file = newest("rank-0000.h5");
  const auto size = static_cast<std::int64_t>(fs::file_size(file));
  Random random(2);
  for (int trial = 0; trial < 200; ++trial) {
    const std::int64_t byte = random.between(0, size - 1);
    flip_bit(file, byte, trial % 8);
    expect_fallback("rank-0000.h5");
    flip_bit(file, byte, trial % 8);
  }
  expect_content(*find_auto(folder_.path()));
}

TEST_F(Damage, AFlippedBitOfATensorNamesFileTensorAndBox) {
  SelfCommunicator world("world");
  const CheckpointInfo info = *find_auto(folder_.path());
  const std::string name = "model.layers.0.mlp.down_proj.weight";
  const StoredPiece& piece = info.manifest.tensors.at(name).pieces[1];
  flip_bit(newest(piece.file), piece.offset + piece.bytes / 2, 3);
  expect_fallback("differs");
  expect_refused("'" + name + "', " + to_text(piece.box));
  Model model = Model::small();
  const std::string message =
      error_of(ExitCode::checkpoint, [&] { load_pieces(info, {model.piece(1, piece.box)}, world); });
  EXPECT_EQ(model.writes, 0);
  for (const std::string& part : {newest("rank-0000.h5"), name, to_text(piece.box)})
    EXPECT_TRUE(mentions(message, {part}));
}

TEST_F(Damage, TruncatedFile) {
  fs::resize_file(newest("rank-0000.h5"), fs::file_size(newest("rank-0000.h5")) - 1);
  expect_fallback("bytes");
  expect_refused("rank-0000.h5");
}

TEST_F(Damage, MissingFile) {
  fs::remove(newest("rank-0000.h5"));
  expect_fallback("cannot find");
  expect_refused("rank-0000.h5");
}

TEST_F(Damage, MissingManifest) {
  fs::remove(newest("manifest.json"));
  expect_fallback("manifest.json");
  expect_refused("manifest.json");
}

/// Nobody waits for what a pipe may bring one day.
TEST_F(Damage, APipeInThePlaceOfAFile) {
  for (const char* name : {"manifest.json", "rank-0000.h5"}) {
    const std::string path = newest(name), aside = path + ".aside";
    fs::rename(path, aside);
    ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
    expect_fallback(name);
    expect_refused(name);
    fs::remove(path);
    fs::rename(aside, path);
  }
  const std::string latest = folder_ / "latest";
  fs::remove(latest);
  ASSERT_EQ(mkfifo(latest.c_str(), 0600), 0);
  EXPECT_EQ(find_auto(folder_.path())->manifest.step, 2);
}

TEST_F(Damage, GarbageManifest) {
  for (const std::string& garbage :
       {std::string(), std::string("{}"), std::string(5000, '\n'), std::string("\0\1", 2)}) {
    write_file(newest("manifest.json"), garbage);
    expect_fallback("not a manifest");
  }
}

/// A manifest with a right checksum whose text was changed.
std::string forged(std::string text, const std::string& from, const std::string& to) {
  text.erase(0, text.find('\n') + 1);
  EXPECT_NE(text.find(from), std::string::npos);
  text.replace(text.find(from), from.size(), to);
  return "{\"checksum\": \"xxh3-128:" + checkpoint::checksum_hex(text.data(), text.size()) + "\",\n" + text;
}

TEST_F(Damage, OtherVersionsAndInconsistentManifestsAreRefused) {
  const std::string text = read_file(newest("manifest.json"));
  const auto expect_reason = [&](const std::string& from, const std::string& to, const std::string& reason) {
    write_file(newest("manifest.json"), forged(text, from, to));
    expect_fallback(reason);
  };
  expect_reason("\"format_version\": 1", "\"format_version\": 2", "format version 2, this program reads version 1");
  expect_reason("trainer-checkpoint", "trainer-picture", "not a trainer-checkpoint");
  expect_reason("\"step\"", "\"stop\"", "step");
  expect_reason("\"name\":\"rank-0000.h5\"", "\"name\":\"../rank-0000.h5\"", "cannot be the name of a file");
  expect_reason("\"shape\":[40,16]", "\"shape\":[41,16]", "640 of 656 elements");
  expect_reason("\"dtype\":\"float32\"", "\"dtype\":\"float23\"", "float23");
  expect_reason("\"offset\":", "\"offset\":-", "overlaps another or the end");
  expect_reason("\"offset\":", "\"offset\":9", "overlaps another or the end");
}

TEST_F(Damage, AViewThatIsDamagedOrMissingIsOnlyAWarning) {
  for (const bool missing : {false, true}) {
    if (missing)
      fs::remove(newest("model.h5"));
    else
      flip_bit(newest("model.h5"), 600, 0);
    std::vector<std::string> warnings;
    const auto info = find_auto(folder_.path(), &warnings);
    ASSERT_TRUE(info.has_value());
    EXPECT_EQ(info->manifest.step, 2);
    ASSERT_EQ(warnings.size(), 1u);
    EXPECT_TRUE(mentions(warnings[0], {"loading does not need it"}));
    expect_content(*info);
  }
}

TEST_F(Damage, WhenNothingIsUsableNoNewRunBegins) {
  fs::remove(newest("manifest.json"));
  flip_bit(folder_ / "step_00000001/rank-0000.h5", 3000, 1);
  EXPECT_TRUE(mentions(error_of(ExitCode::checkpoint, [&] { find_auto(folder_.path()); }), {"of 2 checkpoints in "}));
}

TEST_F(Damage, NewestIsTheOneSavedLast) {
  save_step(folder_.path(), 900);
  save_step(folder_.path(), 30);  // the run went back to an older step and left the branch of step 900
  EXPECT_EQ(find_auto(folder_.path())->manifest.step, 30);
  fs::remove(folder_ / "latest");  // only a hint
  EXPECT_EQ(find_auto(folder_.path())->manifest.step, 30);
  write_file(folder_ / "latest", "step_00000777\n");
  std::vector<std::string> warnings;
  EXPECT_EQ(find_auto(folder_.path(), &warnings)->manifest.step, 30);
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_TRUE(mentions(warnings[0], {"step_00000777"}));
}

TEST_F(Damage, OfTheNameDoesNotMatter) {
  // Readers trust the manifest, never the name.
  fs::rename(folder_ / "step_00000002", folder_ / "step_00000005");
  EXPECT_EQ(find_auto(folder_.path())->manifest.step, 2);
}

TEST(Find, ChoicesOfLoad) {
  const TemporaryFolder folder;
  SelfCommunicator world("world");
  const auto find = [&](const std::string& load) {
    return find_checkpoint(folder.path(), load, world, [](const std::string& warning) { ADD_FAILURE() << warning; });
  };
  EXPECT_FALSE(find("auto").has_value());
  EXPECT_FALSE(find_auto(folder / "not/made/yet").has_value());
  save_step(folder.path(), 1);
  save_step(folder.path(), 2);
  EXPECT_FALSE(find("none").has_value());
  EXPECT_EQ(find(folder / "step_00000001")->manifest.step, 1);
  EXPECT_EQ(find(folder / "step_00000001/")->manifest.step, 1);
  EXPECT_TRUE(mentions(error_of(ExitCode::checkpoint, [&] { find(folder.path()); }),
                       {"did you mean " + folder.path() + "/step_00000002?"}));
  EXPECT_TRUE(mentions(error_of(ExitCode::checkpoint, [&] { find(folder / "step_00000003"); }), {"step_00000003"}));
}

}  // namespace
}  // namespace trainer::checkpoint_test
