// What was saved comes back bit for bit, whatever the boxes were.
#include <cstring>

#include "core/checkpoint/manifest.h"
#include "core/checkpoint/save_folder.h"
#include "tests/checkpoint/support.h"
#include "tests/support/errors.h"
#include "tests/support/files.h"

namespace trainer::checkpoint_test {
namespace {

CheckpointInfo save_and_find(const SaveRequest& request) {
  SelfCommunicator world("world");
  save_checkpoint(request, world, FaultPlan());
  const auto info = find_auto(request.save_dir);
  EXPECT_TRUE(info.has_value());
  return *info;
}

TEST(RoundTrip, EveryDtypeAndTheTexts) {
  const TemporaryFolder folder;
  SelfCommunicator world("world");
  Model saved = Model::of_all_dtypes(), loaded = Model::of_all_dtypes();
  saved.fill(7);
  SaveRequest request = request_for(folder / "a/b", 12, saved.whole());
  request.max_piece_bytes = std::int64_t{64} << 20;
  request.state_json = R"({"scale":65536.0,"big":18446744073709551615,"tiny":5e-324,"list":[1,-2],"text":"\u00e9"})";
  const SaveResult result = save_checkpoint(request, world, FaultPlan());
  EXPECT_EQ(result.path, folder / "a/b/step_00000012");
  EXPECT_TRUE(result.warnings.empty());
  EXPECT_EQ(read_file(folder / "a/b/latest"), "step_00000012\n");
  EXPECT_EQ(names_in(folder / "a/b"), (std::vector<std::string>{"latest", "step_00000012"}));
  EXPECT_EQ(names_in(result.path), (std::vector<std::string>{"manifest.json", "model.h5", "rank-0000.h5"}));

  const auto info = find_auto(folder / "a/b");
  ASSERT_TRUE(info.has_value());
  EXPECT_EQ(info->path, result.path);
  EXPECT_EQ(info->manifest.step, 12);
  EXPECT_EQ(info->manifest.config_yaml, request.config_yaml);
  EXPECT_EQ(info->manifest.versions, request.versions);
  EXPECT_EQ(info->manifest.layout, request.layout);
  EXPECT_EQ(info->manifest.state_json,
            "{\"scale\":65536.0,\"big\":18446744073709551615,\"tiny\":5e-324,\"list\":[1,-2],\"text\":\"\xC3\xA9\"}");
  load_pieces(*info, loaded.whole(), world);
  EXPECT_TRUE(loaded.same_bits(saved));
  EXPECT_EQ(loaded.writes, static_cast<std::int64_t>(loaded.tensors.size()));
}

TEST(RoundTrip, AnyTilingIntoAnyOther) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    const TemporaryFolder folder;
    SelfCommunicator world("world");
    Random random(seed);
    Model saved = Model::of_all_dtypes(), loaded = Model::of_all_dtypes();
    saved.fill(seed);
    SaveRequest request = request_for(folder.path(), 1, saved.tiled(random));
    request.max_piece_bytes = random.between(1, 200);  // often less than a row, at times less than an element
    const CheckpointInfo info = save_and_find(request);
    load_pieces(info, loaded.tiled(random), world);
    EXPECT_TRUE(loaded.same_bits(saved)) << "seed " << seed;
  }
}

TEST(RoundTrip, PartOfATensorTouchesNothingElse) {
  const TemporaryFolder folder;
  SelfCommunicator world("world");
  Model saved = Model::small(), loaded = Model::small();
  saved.fill(3);
  Random random(5);
  const CheckpointInfo info = save_and_find(request_for(folder.path(), 1, saved.tiled(random)));
  load_pieces(info, {loaded.piece(0, {5, 20, 3, 4})}, world);
  for (std::int64_t row = 0; row < 40; ++row)
    for (std::int64_t col = 0; col < 16; ++col) {
      const bool inside = row >= 5 && row < 25 && col >= 3 && col < 7;
      const auto at = static_cast<std::ptrdiff_t>((row * 16 + col) * 4);
      const auto& from = inside ? saved : Model::small();
      EXPECT_EQ(std::memcmp(&loaded.tensors[0].data[static_cast<std::size_t>(at)],
                            &from.tensors[0].data[static_cast<std::size_t>(at)], 4),
                0)
          << row << " " << col;
    }
}

TEST(RoundTrip, PiecesAreCutBetweenRowsAndReadOnce) {
  const TemporaryFolder folder;
  SelfCommunicator world("world");
  Model model = Model::small();  // [40, 16] float32: 64 bytes a row
  SaveRequest request = request_for(folder.path(), 1, model.whole());
  request.max_piece_bytes = 200;
  const CheckpointInfo info = save_and_find(request);
  const auto& pieces = info.manifest.tensors.at("model.embed_tokens.weight").pieces;
  ASSERT_EQ(pieces.size(), 14u);  // 3 rows each
  for (const StoredPiece& piece : pieces) {
    EXPECT_EQ(piece.box.cols, 16);
    EXPECT_LE(piece.bytes, 200);
  }
  EXPECT_EQ(model.reads, 14 + 4 + 1);
}

TEST(RoundTrip, EmptyPiecesAreAllowed) {
  const TemporaryFolder folder;
  SelfCommunicator world("world");
  Model model = Model::small();
  model.fill(1);
  auto pieces = model.whole();
  pieces.push_back(model.piece(0, {3, 0, 0, 16}));
  const CheckpointInfo info = save_and_find(request_for(folder.path(), 1, pieces));
  load_pieces(info, pieces, world);
  expect_content(info);
}

TEST(Load, MismatchesNameBothSidesAndWriteNothing) {
  const TemporaryFolder folder;
  SelfCommunicator world("world");
  save_step(folder.path(), 4);
  const auto info = find_auto(folder.path());
  ASSERT_TRUE(info.has_value());
  const auto message_for = [&](auto change) {
    Model model = Model::small();
    auto pieces = model.whole();
    change(pieces[2]);
    std::string message = error_of(ExitCode::checkpoint, [&] { load_pieces(*info, pieces, world); });
    EXPECT_EQ(model.writes, 0);
    return message;
  };
  const std::string missing = message_for([](Piece& piece) { piece.tensor = "lm_head.weight"; });
  EXPECT_TRUE(mentions(missing, {"'lm_head.weight' [16]"}));
  EXPECT_TRUE(mentions(missing, {"step_00000004"}));
  const std::string shape = message_for([](Piece& piece) { piece.global.rows = 17; });
  EXPECT_TRUE(mentions(shape, {"float32 [17]"}));
  EXPECT_TRUE(mentions(shape, {"float32 [16]"}));
  const std::string dtype = message_for([](Piece& piece) { piece.dtype = Dtype::bf16; });
  EXPECT_TRUE(mentions(dtype, {"bfloat16 [16]"}));
  EXPECT_TRUE(mentions(dtype, {"float32 [16]"}));
}

TEST(Save, TilingFaultsAreRefusedAndLeaveNothing) {
  const auto message_for = [](auto change) {
    const TemporaryFolder folder;
    SelfCommunicator world("world");
    Model model = Model::small();
    auto pieces = model.whole();
    change(model, pieces);
    std::string message = error_of(ExitCode::checkpoint,
                                   [&] { save_checkpoint(request_for(folder.path(), 1, pieces), world, FaultPlan()); });
    EXPECT_TRUE(names_in(folder.path()).empty());
    return message;
  };
  using Pieces = std::vector<Piece>;
  EXPECT_TRUE(mentions(message_for([](Model& m, Pieces& p) {
                         p[0] = m.piece(0, {0, 39, 0, 16});
                       }),
                       {"624 of 640 elements"}));
  EXPECT_TRUE(mentions(message_for([](Model& m, Pieces& p) { p.push_back(m.piece(0, {39, 1, 0, 16})); }), {"overlap"}));
  // One element missing and one twice: the count alone is right.
  EXPECT_TRUE(mentions(message_for([](Model& m, Pieces& p) {
                         p[2] = m.piece(2, {0, 15, 0, 1});
                         p.push_back(m.piece(2, {0, 1, 0, 1}));
                       }),
                       {"overlap"}));
  EXPECT_TRUE(mentions(message_for([](Model&, Pieces& p) { p[0].global.rows = 39; }), {"not inside"}));
  EXPECT_TRUE(mentions(message_for([](Model&, Pieces& p) { p[0].tensor = "a//b"; }), {"cannot be the name"}));
  EXPECT_TRUE(mentions(message_for([](Model&, Pieces& p) { p[0].tensor = p[2].tensor + "/x"; }), {"is inside"}));
}

TEST(Save, StateThatIsNotJsonIsRefused) {
  const TemporaryFolder folder;
  SelfCommunicator world("world");
  Model model = Model::small();
  SaveRequest request = request_for(folder.path(), 1, model.whole());
  request.state_json = R"({"loss": NaN})";
  EXPECT_TRUE(
      mentions(error_of(ExitCode::checkpoint, [&] { save_checkpoint(request, world, FaultPlan()); }), {"JSON"}));
  EXPECT_TRUE(names_in(folder.path()).empty());
}

TEST(Save, AnErrorOfAReadFunctionKeepsItsCode) {
  const TemporaryFolder folder;
  SelfCommunicator world("world");
  Model model = Model::small();
  model.on_read = [] { fail(ExitCode::communication, "device lost"); };
  EXPECT_EQ(error_of(ExitCode::communication,
                     [&] { save_checkpoint(request_for(folder.path(), 1, model.whole()), world, FaultPlan()); }),
            "device lost");
  EXPECT_TRUE(names_in(folder.path()).empty());
}

TEST(Save, EstimateIsAnUpperBoundAndClose) {
  const TemporaryFolder folder;
  SelfCommunicator world("world");
  Model model;
  for (int i = 0; i < 50; ++i) model.tensors.push_back({"tensor." + std::to_string(i), {2, 100, 100}, Dtype::f32, {}});
  model.clear();
  SaveRequest request = request_for(folder.path(), 1, model.whole());
  request.max_piece_bytes = SaveRequest{}.max_piece_bytes;
  const SaveResult result = save_checkpoint(request, world, FaultPlan());
  EXPECT_GE(estimate_bytes(request.pieces), result.bytes);
  EXPECT_LE(estimate_bytes(request.pieces), result.bytes + result.bytes / 5);
}

TEST(NewestCheckpoint, IsTheOneSavedLastThatIsWhole) {
  const TemporaryFolder folder;
  std::vector<std::string> warnings;
  const auto newest = [&] {
    return newest_checkpoint(folder.path(), [&](const std::string& warning) { warnings.push_back(warning); });
  };
  EXPECT_FALSE(newest().has_value());
  for (const std::int64_t step : {10, 20, 5}) save_step(folder.path(), step);
  EXPECT_EQ(newest()->manifest.step, 5);
  EXPECT_TRUE(warnings.empty());
  write_file(folder / "step_00000005/manifest.json", "garbage");
  EXPECT_EQ(newest()->manifest.step, 20);
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_TRUE(mentions(warnings[0], {"step_00000005"}));
}

/// A host whose clock is behind that of the host that saved before.
TEST(NewestCheckpoint, IsTheOneSavedLastWhereTheClockWasSetBack) {
  const TemporaryFolder folder;
  save_step(folder.path(), 10);
  const std::string path = folder / "step_00000010/manifest.json";
  Manifest manifest = parse_manifest(read_file(path), path);
  manifest.saved_at = "2199-12-31T23:59:59.999999999Z";
  write_file(path, manifest_text(manifest));
  const auto newest = [&] { return newest_checkpoint(folder.path(), [](const std::string&) {})->manifest; };
  ASSERT_EQ(newest().step, 10);
  save_step(folder.path(), 20);
  EXPECT_EQ(newest().step, 20);
  EXPECT_EQ(newest().saved_at, "2200-01-01T00:00:00.000000000Z");
  save_step(folder.path(), 15);  // back to an older step
  EXPECT_EQ(newest().step, 15);
}

}  // namespace
}  // namespace trainer::checkpoint_test
