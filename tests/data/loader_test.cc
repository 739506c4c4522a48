// Micro-batches: the samples of a step are the same in every layout, and a resume goes on where the run stopped.
#include "data/loader.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <set>
#include <thread>

#include "core/runtime/targets.h"
#include "tests/data/shard_files.h"
#include "tests/support/errors.h"
#include "tests/support/files.h"

namespace trainer {
namespace {

using testing::Hdf5Shard;
using testing::write_hdf5;

constexpr std::int64_t kLength = 4;

/// A dataset in which token i has id i, so that an id tells its place.
class Counting {
 public:
  explicit Counting(std::int64_t tokens) {
    std::vector<std::int64_t> ids(static_cast<std::size_t>(tokens));
    std::iota(ids.begin(), ids.end(), 0);
    write_hdf5(folder_ / "a.h5", {.ids = ids});
  }
  TokenDataset open() const { return TokenDataset::open({folder_.path()}, DataFormat::automatic, 10000); }

 private:
  TemporaryFolder folder_;
};

TEST(Loader, AMicroBatchHoldsItsWindows) {
  const Counting data(10 * kLength + 1);
  const TokenDataset dataset = data.open();
  const Sampler sampler(3, num_windows(dataset.num_tokens(), kLength));
  Loader loader(dataset, sampler, {.seq_length = kLength, .micro_batch_size = 2, .global_batch_size = 4}, 0);
  for (std::int64_t index = 0; index < 12; ++index) {
    const MicroBatch& batch = loader.next();
    EXPECT_EQ(batch.step, index / 2);
    EXPECT_EQ(batch.micro, index % 2);
    EXPECT_EQ(batch.first_slot, 2 * (index % 2));
    EXPECT_EQ(batch.sequence_starts, (std::vector<std::int32_t>{0, 4, 8}));
    EXPECT_EQ(batch.positions, (std::vector<std::int32_t>{0, 1, 2, 3, 0, 1, 2, 3}));
    for (std::int64_t row = 0; row < 2; ++row) {
      const std::int64_t window = sampler.window(index * 2 + row);
      EXPECT_EQ(batch.sample_ids[static_cast<std::size_t>(row)], window);
      for (std::int64_t i = 0; i < kLength; ++i) {
        EXPECT_EQ(batch.inputs[static_cast<std::size_t>(row * kLength + i)], window * kLength + i);
        EXPECT_EQ(batch.targets[static_cast<std::size_t>(row * kLength + i)], window * kLength + i + 1);
      }
    }
  }
}

TEST(Loader, MaskedTokensAreInputsButNoTargets) {
  const TemporaryFolder folder;
  write_hdf5(folder / "a.h5", {.ids = {5, 6, 7, 8, 9}, .mask = {0, 1, 0, 0, 1}});
  const TokenDataset dataset = TokenDataset::open({folder.path()}, DataFormat::automatic, 10);
  Loader loader(dataset, Sampler::in_order(1), {.seq_length = 4}, 0);
  const MicroBatch& batch = loader.next();
  EXPECT_EQ(batch.inputs, (std::vector<std::int32_t>{5, 6, 7, 8}));
  EXPECT_EQ(batch.targets, (std::vector<std::int32_t>{6, kIgnoredTarget, kIgnoredTarget, 9}));
}

/// Three shards of 10, 7 and 8 tokens; documents begin at 0, 3, 4, 19 and 21 of the whole.
TEST(Loader, DocumentsAreSequencesOfTheirOwn) {
  const TemporaryFolder folder;
  const auto write = [&](const char* name, std::size_t tokens, const std::vector<std::int64_t>& documents) {
    write_hdf5(folder / name, {.ids = std::vector<std::int64_t>(tokens, 7), .documents = documents});
  };
  write("a.h5", 10, {0, 3, 4});
  write("b.h5", 7, {});
  write("c.h5", 8, {2, 4});
  const LoaderShape shape{.seq_length = kLength, .micro_batch_size = 2, .global_batch_size = 2};
  const auto check = [&](bool documents, const std::vector<std::vector<std::int32_t>>& starts,
                         const std::vector<std::vector<std::int32_t>>& positions) {
    const TokenDataset dataset = TokenDataset::open({folder.path()}, DataFormat::automatic, 10, documents);
    Loader loader(dataset, Sampler::in_order(num_windows(dataset.num_tokens(), kLength)), shape, 0);
    for (std::size_t i = 0; i < starts.size(); ++i) {
      const MicroBatch& batch = loader.next();
      EXPECT_EQ(batch.sequence_starts, starts[i]) << i;
      EXPECT_EQ(batch.positions, positions[i]) << i;
    }
  };
  // The second window begins with a document, the third within one, which goes on in the next shard; a document begins
  // in the fifth, whose first tokens belong to that one. The last micro-batch is empty.
  check(true, {{0, 3, 4, 8}, {0, 4, 8}, {0, 3, 4, 5, 8}, {0, 4, 8}},
        {{0, 1, 2, 0, 0, 1, 2, 3}, {0, 1, 2, 3, 0, 1, 2, 3}, {0, 1, 2, 0, 0, 0, 1, 2}, {0, 1, 2, 3, 0, 1, 2, 3}});
  check(false, {{0, 4, 8}, {0, 4, 8}}, {{0, 1, 2, 3, 0, 1, 2, 3}, {0, 1, 2, 3, 0, 1, 2, 3}});
}

TEST(Loader, TheGlobalBatchIsTheSameInEveryLayout) {
  const Counting data(37 * kLength + 1);
  const TokenDataset dataset = data.open();
  const Sampler sampler(11, num_windows(dataset.num_tokens(), kLength));
  constexpr std::int64_t global_batch = 16, steps = 6;  // into the third epoch
  for (const int dp_size : {1, 2, 4}) {
    for (const std::int64_t accumulation : {1, 2, 4}) {
      std::vector<int> visits(global_batch * steps, 0);
      for (int rank = 0; rank < dp_size; ++rank) {
        const LoaderShape shape{.seq_length = kLength,
                                .micro_batch_size = global_batch / (dp_size * accumulation),
                                .global_batch_size = global_batch,
                                .dp_rank = rank,
                                .dp_size = dp_size};
        ASSERT_EQ(shape.accumulation(), accumulation);
        Loader loader(dataset, sampler, shape, 0);
        for (std::int64_t i = 0; i < steps * accumulation; ++i) {
          const MicroBatch& batch = loader.next();
          for (std::int64_t row = 0; row < shape.micro_batch_size; ++row) {
            const std::int64_t sample = batch.step * global_batch + batch.first_slot + row;
            ++visits[static_cast<std::size_t>(sample)];
            EXPECT_EQ(batch.sample_ids[static_cast<std::size_t>(row)], sampler.window(sample));
            EXPECT_EQ(batch.inputs[static_cast<std::size_t>(row * kLength)], sampler.window(sample) * kLength);
          }
        }
      }
      EXPECT_EQ(std::count(visits.begin(), visits.end(), 1), global_batch * steps)
          << "data-parallel size " << dp_size << ", accumulation " << accumulation;
    }
  }
}

/// Windows of `steps` steps from `first_step` on, of all ranks in slot order.
std::vector<std::int64_t> sample_ids(const TokenDataset& dataset, std::int64_t first_step, std::int64_t steps,
                                     int dp_size) {
  const Sampler sampler(21, num_windows(dataset.num_tokens(), kLength));
  std::vector<std::int64_t> ids(static_cast<std::size_t>(2 * steps));
  for (int rank = 0; rank < dp_size; ++rank) {
    Loader loader(dataset, sampler,
                  {.seq_length = kLength, .global_batch_size = 2, .dp_rank = rank, .dp_size = dp_size}, first_step);
    for (std::int64_t i = 0; i < steps * 2 / dp_size; ++i) {
      const MicroBatch& batch = loader.next();
      ids[static_cast<std::size_t>((batch.step - first_step) * 2 + batch.first_slot)] = batch.sample_ids[0];
    }
  }
  return ids;
}

TEST(Loader, AResumeGoesOnWithTheSameSamplesAlsoOnAnotherNumberOfRanks) {
  const Counting data(10 * kLength + 1);  // 10 samples, batch 2: 5 steps an epoch
  const TokenDataset dataset = data.open();
  const std::vector<std::int64_t> unbroken = sample_ids(dataset, 0, 15, 1);
  for (std::size_t epoch = 0; epoch < 3; ++epoch) {
    const auto first = unbroken.begin() + static_cast<std::ptrdiff_t>(10 * epoch);
    EXPECT_EQ(std::set<std::int64_t>(first, first + 10).size(), 10) << "epoch " << epoch;
    EXPECT_TRUE(epoch == 0 || !std::equal(first, first + 10, first - 10)) << "epoch " << epoch << " repeats an order";
  }
  for (const std::int64_t stop : {5, 7, 10}) {
    const std::vector<std::int64_t> rest(unbroken.begin() + 2 * stop, unbroken.end());
    EXPECT_EQ(sample_ids(dataset, stop, 15 - stop, 1), rest) << "after step " << stop;
    EXPECT_EQ(sample_ids(dataset, stop, 15 - stop, 2), rest) << "after step " << stop << " on two ranks";
  }
}

TEST(Loader, RowsBehindTheEndOfValidationHaveNoTargets) {
  const Counting data(3 * kLength + 1);
  const TokenDataset dataset = data.open();
  Loader loader(dataset, Sampler::in_order(3), {.seq_length = kLength, .micro_batch_size = 2, .global_batch_size = 2},
                0);
  EXPECT_EQ(loader.next().sample_ids, (std::vector<std::int64_t>{0, 1}));
  const MicroBatch& last = loader.next();
  EXPECT_EQ(last.sample_ids, (std::vector<std::int64_t>{2, kNoWindow}));
  EXPECT_EQ(last.targets, (std::vector<std::int32_t>{9, 10, 11, 12, -1, -1, -1, -1}));
  EXPECT_EQ(last.inputs, (std::vector<std::int32_t>{8, 9, 10, 11, 0, 0, 0, 0}));
}

TEST(Loader, AnErrorOfTheThreadComesOutOfNextInItsPlace) {
  const TemporaryFolder folder;
  write_hdf5(folder / "a.h5", {.type = Hdf5Shard::Type::i32, .ids = {0, 1, 2, 3, 4, 5, 99, 7, 8}});
  const TokenDataset dataset = TokenDataset::open({folder.path()}, DataFormat::automatic, 50);
  Loader loader(dataset, Sampler::in_order(2), {.seq_length = kLength}, 0);
  // The thread meets the bad id of the second micro-batch before the first is asked for.
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(loader.next().inputs, (std::vector<std::int32_t>{0, 1, 2, 3}));
  for (int call = 0; call < 2; ++call)
    EXPECT_TRUE(mentions(error_of(ExitCode::data, [&] { loader.next(); }), {"a.h5", "token 6 has id 99"}));
}

TEST(Loader, EndsAtOnceWithAFullQueueAndWithAnUntouchedOne) {
  const Counting data(3 * kLength + 1);
  const TokenDataset dataset = data.open();
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < 200; ++i) {
    Loader loader(dataset, Sampler(1, 3), {.seq_length = kLength, .prefetch = 1 + i % 3}, 0);
    if (i % 4 == 1) loader.next();
    if (i % 10 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));  // the queue fills
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
}

TEST(Loader, TheHeldMicroBatchIsNotOverwritten) {
  const Counting data(5 * kLength + 1);
  const TokenDataset dataset = data.open();
  Loader loader(dataset, Sampler::in_order(5), {.seq_length = kLength, .prefetch = 1}, 0);
  for (std::int32_t window = 0; window < 5; ++window) {
    const MicroBatch& batch = loader.next();
    std::this_thread::sleep_for(std::chrono::milliseconds(2));  // time for the thread to run ahead
    EXPECT_EQ(batch.inputs.front(), window * kLength);
    EXPECT_EQ(batch.step, window);
  }
  EXPECT_GE(loader.wait_seconds(), 0);
  EXPECT_LT(loader.wait_seconds(), 5);
}

}  // namespace
}  // namespace trainer
