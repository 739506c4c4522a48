// Several ranks: pieces dealt over them, errors that all of them learn of, one choice for all.
#include <filesystem>
#include <thread>

#include "parallel/host_exchange.h"
#include "tests/checkpoint/support.h"
#include "tests/support/errors.h"
#include "tests/support/files.h"
#include "tests/support/mpi_world.h"

namespace trainer::checkpoint_test {
namespace {

/// One folder for all ranks; it goes when the last of them is done.
class SharedFolder {
 public:
  SharedFolder() {
    if (test_world().rank() == 0) folder_ = std::make_unique<TemporaryFolder>();
    path_ = broadcast_string(test_world(), folder_ ? folder_->path() : "", 0);
  }
  ~SharedFolder() { test_world().barrier(); }
  SharedFolder(const SharedFolder&) = delete;
  SharedFolder& operator=(const SharedFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::unique_ptr<TemporaryFolder> folder_;
  std::string path_;
};

/// The part of a random tiling that this rank has. All ranks draw the same tiling.
std::vector<Piece> dealt(Model& model, Random& random, const Communicator& group) {
  std::vector<Piece> mine;
  for (const Piece& piece : model.tiled(random))
    if (random.between(0, group.size() - 1) == group.rank()) mine.push_back(piece);
  return mine;
}

/// Saves the model filled with `step`, dealt over the ranks of the group.
SaveResult save_dealt(const std::string& folder, std::int64_t step, Communicator& group) {
  Model model = Model::of_all_dtypes();
  model.fill(static_cast<std::uint64_t>(step));
  Random random(static_cast<std::uint64_t>(step));
  return save_checkpoint(request_for(folder, step, dealt(model, random, group)), group, FaultPlan());
}

std::optional<CheckpointInfo> find_with(const std::string& folder, Communicator& group,
                                        std::vector<std::string>* warnings = nullptr) {
  return find_checkpoint(folder, "auto", group, [&](const std::string& warning) {
    EXPECT_EQ(group.rank(), 0);
    if (warnings != nullptr) warnings->push_back(warning);
  });
}

/// Every rank of the group loads boxes of its own choice (ranks may want the same elements), and has the right bits.
void expect_loads(const std::string& folder, std::int64_t step, std::uint64_t seed, Communicator& group) {
  const auto info = find_with(folder, group);
  ASSERT_TRUE(info.has_value());
  ASSERT_EQ(info->manifest.step, step);
  Random random(seed * 100 + static_cast<std::uint64_t>(test_world().rank()));
  Model saved = Model::of_all_dtypes(), expected = Model::of_all_dtypes(), loaded = Model::of_all_dtypes();
  saved.fill(static_cast<std::uint64_t>(step));
  std::vector<Piece> wanted;
  for (std::size_t i = 0; i < saved.tensors.size(); ++i) {
    const TensorShape& shape = saved.tensors[i].shape;
    for (const Box& box : random_tiling({0, shape.rows, 0, shape.cols}, random, 5)) {
      if (random.between(0, 1) == 0) continue;
      wanted.push_back(loaded.piece(i, box));
      std::vector<std::byte> values(static_cast<std::size_t>(box.numel() * dtype_size(saved.tensors[i].dtype)));
      saved.piece(i, box).read(0, box.numel(), values.data());
      expected.piece(i, box).write(0, box.numel(), values.data());
    }
  }
  load_pieces(*info, wanted, group);
  EXPECT_TRUE(loaded.same_bits(expected)) << "seed " << seed;
}

TEST(Ranks, AnyTilingOnAnyRanksIntoAnyOther) {
  for (std::int64_t step = 1; step <= 12; ++step) {
    const SharedFolder folder;
    const SaveResult result = save_dealt(folder.path(), step, test_world());
    EXPECT_EQ(std::filesystem::path(result.path).filename(), fmt::format("step_{:08}", step));
    EXPECT_EQ(names_in(result.path).size(), static_cast<std::size_t>(test_world().size()) + 2);
    expect_loads(folder.path(), step, static_cast<std::uint64_t>(step), test_world());
  }
}

TEST(Ranks, AnotherNumberOfRanks) {
  const SharedFolder folder;
  save_dealt(folder.path(), 1, test_world());
  const auto half = test_world().split(test_world().rank() % 2, test_world().rank(), "half");
  expect_loads(folder.path(), 1, 1, *half);
  SelfCommunicator self("self");
  expect_loads(folder.path(), 1, 2, self);
  test_world().barrier();
  if (test_world().rank() == 0) save_dealt(folder.path(), 2, self);
  test_world().barrier();
  expect_loads(folder.path(), 2, 3, test_world());
}

TEST(Ranks, SavesWithRandomDelaysPublishOnce) {
  const SharedFolder folder;
  Communicator& world = test_world();
  Random delays(100 + static_cast<std::uint64_t>(world.rank()));
  for (std::int64_t step = 1; step <= 50; ++step) {
    Model model = Model::small();
    model.fill(static_cast<std::uint64_t>(step));
    model.on_read = [&] { std::this_thread::sleep_for(std::chrono::microseconds(delays.between(0, 2000))); };
    Random random(static_cast<std::uint64_t>(step));
    SaveRequest request = request_for(folder.path(), step, dealt(model, random, world));
    request.keep_last = 2;
    EXPECT_TRUE(save_checkpoint(request, world, FaultPlan()).warnings.empty());
    const auto info = find_with(folder.path(), world);
    ASSERT_TRUE(info.has_value());
    ASSERT_EQ(info->manifest.step, step);
  }
  EXPECT_EQ(names_in(folder.path()), (std::vector<std::string>{"latest", "step_00000049", "step_00000050"}));
}

/// What a save throws on this rank when `change` has been at the pieces; the folder is as before.
std::string message_of_save(const std::string& folder, ExitCode code,
                            const std::function<void(Model&, std::vector<Piece>&)>& change,
                            const FaultPlan& fault = FaultPlan()) {
  const auto before = names_in(folder);
  test_world().barrier();
  Model model = Model::of_all_dtypes();
  Random random(1);
  std::vector<Piece> pieces = dealt(model, random, test_world());
  change(model, pieces);
  std::string message = error_of(code, [&] { save_checkpoint(request_for(folder, 2, pieces), test_world(), fault); });
  test_world().barrier();
  EXPECT_EQ(names_in(folder), before);
  const std::vector<std::string> all = gather_strings(test_world(), message);
  for (const std::string& other : all) EXPECT_EQ(other, message);
  return message;
}

TEST(Ranks, AnErrorOnOneRankFailsTheSaveOnAll) {
  const SharedFolder folder;
  save_dealt(folder.path(), 1, test_world());
  const int last = test_world().size() - 1;
  const std::string culprit = fmt::format("rank {}: ", last);
  const bool mine = test_world().rank() == last;
  const auto unchanged = [](Model&, std::vector<Piece>&) {};
  EXPECT_TRUE(mentions(message_of_save(folder.path(), ExitCode::memory,
                                       [&](Model& model, std::vector<Piece>&) {
                                         if (mine) model.on_read = [] { fail(ExitCode::memory, "no more"); };
                                       }),
                       {culprit + "no more"}));
  for (const char* site : {"save.begin", "save.write", "save.publish"}) {
    FaultPlan fault = FaultPlan::parse(fmt::format("rank={},site={},action=throw", last, site));
    fault.set_rank(test_world().rank(), test_world().size());
    EXPECT_TRUE(mentions(message_of_save(folder.path(), ExitCode::other, unchanged, fault), {culprit}));
  }
  expect_loads(folder.path(), 1, 7, test_world());
  save_dealt(folder.path(), 2, test_world());
  expect_loads(folder.path(), 2, 8, test_world());
}

TEST(Ranks, ElementsOnTwoRanksOrOnNoneAreRefused) {
  const SharedFolder folder;
  const bool last = test_world().rank() == test_world().size() - 1;
  const bool first = test_world().rank() == 0;
  // Rank 0 has tensor 0 whole and the others have nothing else of it.
  const auto only_on_rank_0 = [&](Model& model, std::vector<Piece>& pieces, std::int64_t rows) {
    std::erase_if(pieces, [&](const Piece& piece) { return piece.tensor == model.tensors[0].name; });
    if (first) pieces.push_back(model.piece(0, {0, rows, 0, 7}));
  };
  EXPECT_TRUE(mentions(message_of_save(folder.path(), ExitCode::checkpoint,
                                       [&](Model& model, auto& pieces) { only_on_rank_0(model, pieces, 12); }),
                       {"84 of 91 elements"}));
  const std::string twice = message_of_save(folder.path(), ExitCode::checkpoint, [&](Model& model, auto& pieces) {
    only_on_rank_0(model, pieces, 13);
    if (last) pieces.push_back(model.piece(0, {12, 1, 6, 1}));
  });
  EXPECT_TRUE(mentions(twice, {"overlap"}));
  EXPECT_TRUE(mentions(twice, {fmt::format("rank-{:04}.h5", test_world().size() - 1)}));
  EXPECT_TRUE(mentions(message_of_save(folder.path(), ExitCode::checkpoint,
                                       [&](Model& model, auto& pieces) {
                                         only_on_rank_0(model, pieces, 12);
                                         if (!last) return;
                                         pieces.push_back(model.piece(0, {12, 1, 0, 7}));
                                         pieces.back().dtype = Dtype::f32;
                                       }),
                       {"on one rank and float32 [13, 7] on another"}));
}

TEST(Ranks, DamageMakesAllFallBackTogether) {
  const SharedFolder folder;
  save_dealt(folder.path(), 1, test_world());
  const SaveResult newest = save_dealt(folder.path(), 2, test_world());
  Random random(3);
  for (int trial = 0; trial < 20; ++trial) {
    const std::string file = fmt::format("{}/rank-{:04}.h5", newest.path, random.between(0, test_world().size() - 1));
    const std::int64_t byte = random.between(0, static_cast<std::int64_t>(std::filesystem::file_size(file)) - 1);
    test_world().barrier();
    if (test_world().rank() == 0) flip_bit(file, byte, trial % 8);
    test_world().barrier();
    std::vector<std::string> warnings;
    const auto info = find_with(folder.path(), test_world(), &warnings);
    ASSERT_TRUE(info.has_value());
    EXPECT_EQ(info->manifest.step, 1);
    ASSERT_EQ(warnings.size(), test_world().rank() == 0 ? 1u : 0u);
    for (const std::string& warning : warnings) EXPECT_TRUE(mentions(warning, {file}));
    test_world().barrier();
    if (test_world().rank() == 0) flip_bit(file, byte, trial % 8);
    test_world().barrier();
  }
  expect_loads(folder.path(), 2, 4, test_world());
}

TEST(Ranks, AMismatchOnOneRankStopsTheLoadOnAllBeforeAnyWrite) {
  const SharedFolder folder;
  save_dealt(folder.path(), 1, test_world());
  const auto info = find_with(folder.path(), test_world());
  ASSERT_TRUE(info.has_value());
  Model model = Model::of_all_dtypes();
  auto wanted = model.whole();
  const int last = test_world().size() - 1;
  if (test_world().rank() == last) wanted[0].tensor = "lm_head.weight";
  const std::string message = error_of(ExitCode::checkpoint, [&] { load_pieces(*info, wanted, test_world()); });
  EXPECT_TRUE(mentions(message, {fmt::format("rank {}: the run needs tensor 'lm_head.weight'", last)}));
  EXPECT_EQ(model.writes, 0);
}

}  // namespace
}  // namespace trainer::checkpoint_test
