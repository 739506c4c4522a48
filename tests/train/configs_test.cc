// The configurations that come with the program: each reads, fits its number of ranks, and needs the memory that its
// head says, on the card that its head names.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <regex>
#include <set>

#include "core/config/reader.h"
#include "core/config/resolve.h"
#include "core/train/cards.h"
#include "core/train/plan.h"
#include "core/train/plan_changes.h"

namespace trainer::test {
namespace {

/// The comment at the top of a file, as one line.
std::string head_of(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::string head, line;
  while (std::getline(file, line) && line.starts_with("# ")) head += line.substr(2) + " ";
  return head;
}

struct Promise {
  int ranks = 0;
  std::string card;  // empty: CPU ranks
  double bytes = 0.0;
};
Promise promise_of(const std::string& head) {
  static const std::regex kForm(
      R"((GPUs: (\d+) x ([a-z0-9-]+)|CPU ranks: (\d+))\. Memory: ([0-9.]+) ([MG])iB a rank\.)");
  std::smatch found;
  if (!std::regex_search(head, found, kForm)) return {};
  const bool gpus = found[2].matched;
  return {.ranks = std::stoi(gpus ? found[2] : found[4]),
          .card = found[3],
          .bytes = std::stod(found[5]) * (found[6] == "G" ? 1 << 30 : 1 << 20)};
}

std::vector<std::filesystem::path> config_files() {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(CONFIG_FOLDER))
    if (entry.path().extension() == ".yaml") files.push_back(entry.path());
  return files;
}

TEST(Configs, NeedWhatTheirHeadsSay) {
  const auto files = config_files();
  EXPECT_GE(files.size(), 13U);
  for (const auto& path : files) {
    SCOPED_TRACE(path.string());
    const Promise promise = promise_of(head_of(path));
    ASSERT_GT(promise.ranks, 0) << "the head has no line 'GPUs: N x CARD. Memory: X GiB a rank.'";
    // Those of the benchmarks name no data.
    const bool bench = path.parent_path().filename() == "bench";
    Config config =
        read_config({.files = {path.string()},
                     .sets = bench ? std::vector<std::string>{"data.train=[none]"} : std::vector<std::string>{},
                     .environment = {},
                     .world_size = promise.ranks});
    resolve_defaults(config, promise.ranks);
    for (int rank = 0; rank < promise.ranks; ++rank) {
      const std::int64_t bytes = plan_memory(config, rank).total_bytes();
      EXPECT_NEAR(static_cast<double>(bytes), promise.bytes, 0.01 * promise.bytes) << "rank " << rank;
      if (!promise.card.empty()) {
        EXPECT_LE(bytes, find_card(promise.card).bytes) << "rank " << rank;
      }
    }
  }
}

/// The second layout in the head of configs/14b-2xh200.yaml, as its first six settings give it and with the rest.
TEST(Configs, FourteenBillionFitTwoCardsUnderZero3Too) {
  const std::filesystem::path path = std::filesystem::path(CONFIG_FOLDER) / "14b-2xh200.yaml";
  const std::string head = head_of(path);
  static const std::regex kSet(R"(--set (\S+))");
  std::vector<std::string> sets;
  for (std::sregex_iterator set(head.begin(), head.end(), kSet), end; set != end; ++set) sets.push_back((*set)[1]);
  ASSERT_EQ(sets.size(), 9U) << head;
  for (const std::ptrdiff_t count : {6, 9}) {
    SCOPED_TRACE(count);
    Config config = read_config(
        {.files = {path.string()}, .sets = {sets.begin(), sets.begin() + count}, .environment = {}, .world_size = 2});
    resolve_defaults(config, 2);
    EXPECT_EQ(config.parallelism.zero_stage, 3);
    EXPECT_EQ(config.parallelism.zero_resident_layers, count == 6 ? 0 : 36);
    EXPECT_LE(plan_memory(config, 0).total_bytes(), find_card("h200").bytes);
  }
}

/// What is advised to whom brings the configuration of larger cards leads to the layout that is given for V100s.
TEST(Configs, FourteenBillionFitVoltaByTheChangesThatArePlanned) {
  const auto read = [](const char* name) {
    const std::filesystem::path path = std::filesystem::path(CONFIG_FOLDER) / name;
    return read_config({.files = {path.string()}, .sets = {}, .environment = {}, .world_size = 8});
  };
  const Card card = find_card("v100-32");
  const PlanChange change = cheapest_change(read("14b.yaml"), 8, card, /*may_offload=*/false);
  EXPECT_TRUE(change.fits);
  EXPECT_EQ(change.host_bytes, 0);
  EXPECT_EQ(std::set<std::string>(change.sets.begin(), change.sets.end()),
            (std::set<std::string>{"optimizer.moments_dtype=bf16", "parallelism.tensor_parallel_size=8",
                                   "precision.dtype=fp16", "train.micro_batch_size=1"}));
  Config given = read("14b-8xv100.yaml");
  resolve_defaults(given, 8);
  EXPECT_EQ(plan_memory(given, 0, card.sm).total_bytes(), change.bytes);
  EXPECT_GT(cheapest_change(read("14b.yaml"), 8, card).host_bytes, 0) << "cheaper, where the host has room";
}

}  // namespace
}  // namespace trainer::test
