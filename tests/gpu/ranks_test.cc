// Several ranks with a GPU each: collectives whose result is known beforehand, and training that is the same function
// as on one GPU. TRAINER_SHARE_DEVICE=1 lets the ranks share a card where there are fewer cards.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "core/runtime/streams.h"
#include "core/train/inspect.h"
#include "kernels/ops.h"
#include "launch/rank_device.h"
#include "optim/update_state.h"
#include "parallel/host_exchange.h"
#include "tests/parallel/crossing_check.h"
#include "tests/support/layout_check.h"
#include "tests/support/mpi_world.h"

namespace trainer::test {
namespace {

/// This rank's GPU, or a skipped test on all ranks.
class GpuRanks : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    const LocalPlace place = test_local_place();
    const char* share = std::getenv("TRAINER_SHARE_DEVICE");  // NOLINT(concurrency-mt-unsafe): no thread changes it
    const int needed = share != nullptr ? 1 : place.size;
    if (!agree(test_world(), device_count() >= needed)) return;
    Config config;
    config.train.device = DeviceChoice::cuda;
    config.precision.dtype = Precision::float32;  // which every card can do
    device() = std::make_unique<RankDevice>(config, place.rank, place.size);
  }
  static void TearDownTestSuite() { device().reset(); }
  void SetUp() override {
    if (!device()) GTEST_SKIP() << "fewer CUDA cards than ranks; TRAINER_SHARE_DEVICE=1 lets ranks share one";
    ctx_ = device()->context();
  }
  std::unique_ptr<Communicator> world() const { return new_test_world(ctx_.device); }
  /// Copy engines move every tensor.
  std::unique_ptr<Communicator> peer_world() const {
    return new_test_world(ctx_.device, {.timeout_seconds = 60, .peer_copy_bytes = 1});
  }

  static std::unique_ptr<RankDevice>& device() {
    static std::unique_ptr<RankDevice> device;
    return device;
  }
  Context ctx_;
};

/// Device memory with numbers in it. Values are small integers, so that sums are exact in every type.
class Numbers {
 public:
  Numbers(const Context& ctx, Dtype dtype, std::int64_t count)
      : ctx_(ctx),
        memory_(allocate(ctx.device, std::max(count * dtype_size(dtype), kReachable), "test data")),
        tensor_(tensor_over(memory_.get(), dtype, 1, count)) {}

  const Tensor& tensor() const { return tensor_; }

  template <class Value>
  void set(const Value& value) const {
    std::vector<double> values(static_cast<std::size_t>(tensor_.numel()));
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = value(static_cast<std::int64_t>(i));
    const Numbers wide(ctx_, Dtype::f64, tensor_.numel());
    copy_to_device(ctx_, wide.tensor_.data, values.data(), wide.tensor_.bytes());
    ops::cast(ctx_, {.in = wide.tensor_, .out = tensor_});
    synchronize(ctx_);
  }
  template <class Value>
  void expect(const Value& value, const std::string& what) const {
    const Numbers wide(ctx_, Dtype::f64, tensor_.numel());
    ops::cast(ctx_, {.in = tensor_, .out = wide.tensor_});
    std::vector<double> values(static_cast<std::size_t>(tensor_.numel()));
    copy_to_host(ctx_, values.data(), wide.tensor_.data, wide.tensor_.bytes());
    synchronize(ctx_);
    for (std::size_t i = 0; i < values.size(); ++i)
      ASSERT_EQ(values[i], value(static_cast<std::int64_t>(i))) << what << " element " << i;
  }

 private:
  static constexpr std::int64_t kReachable = std::int64_t{2} << 20;  // for copy engines
  Context ctx_;
  std::shared_ptr<void> memory_;
  Tensor tensor_;
};

double value_of(int rank, std::int64_t i) {
  return static_cast<double>((i + 3 * rank) % 7 - 2);
}

double sum_of(int ranks, std::int64_t i) {
  double sum = 0;
  for (int r = 0; r < ranks; ++r) sum += value_of(r, i);
  return sum;
}

void check_collectives(const Context& ctx, Communicator& world, Dtype dtype, std::int64_t n) {
  const std::string what = fmt::format("{} x {}", dtype_name(dtype), n);
  const int rank = world.rank(), size = world.size();
  const auto mine = [&](std::int64_t i) { return value_of(rank, i); };
  const Numbers part(ctx, dtype, n), whole(ctx, dtype, n * size);
  const Tensor own = whole.tensor().flat_range(rank * n, n);

  part.set(mine);
  world.all_reduce(ctx, part.tensor(), ReduceOp::sum);
  part.expect([&](std::int64_t i) { return sum_of(size, i); }, "sum " + what);

  part.set([&](std::int64_t i) { return static_cast<double>(rank) + static_cast<double>(i % 3); });
  world.all_reduce(ctx, part.tensor(), ReduceOp::max);
  part.expect([&](std::int64_t i) { return static_cast<double>(size - 1) + static_cast<double>(i % 3); },
              "max " + what);

  part.set([&](std::int64_t i) { return static_cast<double>(rank) + static_cast<double>(i % 3); });
  world.all_reduce(ctx, part.tensor(), ReduceOp::min);
  part.expect([&](std::int64_t i) { return static_cast<double>(i % 3); }, "min " + what);

  const auto scattered = [&](std::int64_t i) { return sum_of(size, rank * n + i); };
  whole.set(mine);
  world.reduce_scatter(ctx, whole.tensor(), part.tensor());
  part.expect(scattered, "reduce_scatter " + what);
  whole.set(mine);
  world.reduce_scatter(ctx, whole.tensor(), own);
  copy(ctx, part.tensor().data, own.data, own.bytes());
  part.expect(scattered, "reduce_scatter in place " + what);
  if (dtype != Dtype::f64) {
    const Numbers sum(ctx, Dtype::f32, n);  // what gradients are added up in
    const auto before = [](std::int64_t i) { return static_cast<double>(i % 5); };
    for (const bool accumulate : {false, true}) {
      whole.set(mine);
      sum.set(before);
      world.reduce_scatter_into(ctx, whole.tensor(), sum.tensor(), accumulate);
      sum.expect([&](std::int64_t i) { return scattered(i) + (accumulate ? before(i) : 0.0); },
                 fmt::format("reduce_scatter_into {} accumulate {}", what, accumulate));
    }
  }

  const auto gathered = [&](std::int64_t i) { return value_of(static_cast<int>(i / n), i % n); };
  part.set(mine);
  world.all_gather(ctx, part.tensor(), whole.tensor());
  whole.expect(gathered, "all_gather " + what);
  whole.set([](std::int64_t) { return 0.0; });
  copy(ctx, own.data, part.tensor().data, own.bytes());
  world.all_gather(ctx, own, whole.tensor());
  whole.expect(gathered, "all_gather in place " + what);

  const Numbers other(ctx, dtype, n);
  part.set(mine);
  for (int shift = 0; shift < size; ++shift) {
    world.rotate(ctx, part.tensor(), other.tensor(), shift);
    other.expect([&](std::int64_t i) { return value_of((rank + shift) % size, i); },
                 fmt::format("rotate by {} {}", shift, what));
  }

  part.set(mine);
  world.broadcast(ctx, part.tensor(), size - 1);
  part.expect([&](std::int64_t i) { return value_of(size - 1, i); }, "broadcast " + what);
}

TEST_F(GpuRanks, CollectivesGiveWhatIsKnownBeforehand) {
  const auto world = this->world();
  for (const Dtype dtype : {Dtype::f64, Dtype::f32, Dtype::bf16, Dtype::f16})
    for (const std::int64_t n : {1, 7, 1000, (1 << 20) + 3}) check_collectives(ctx_, *world, dtype, n);
}

TEST_F(GpuRanks, PeerCopiesGiveWhatIsKnownBeforehand) {
  const auto world = peer_world();
  for (const Dtype dtype : {Dtype::f64, Dtype::f32, Dtype::bf16, Dtype::f16})
    for (const std::int64_t n : {1, 7, 1000, (1 << 20) + 3}) check_collectives(ctx_, *world, dtype, n);
  // More than the scratch memory of sums takes at once.
  const std::int64_t n = (std::int64_t{66} << 20) / world->size();
  const Numbers part(ctx_, Dtype::f32, n), whole(ctx_, Dtype::f32, n * world->size());
  whole.set([&](std::int64_t i) { return value_of(world->rank(), i); });
  world->reduce_scatter(ctx_, whole.tensor(), part.tensor());
  part.expect([&](std::int64_t i) { return sum_of(world->size(), world->rank() * n + i); }, "in pieces");
}

TEST_F(GpuRanks, HostMemoryTravelsToo) {
  const auto world = this->world();
  EXPECT_EQ(max_over_ranks(*world, world->rank()), world->size() - 1);
  EXPECT_EQ(broadcast_string(*world, fmt::format("from {}", world->rank()), 0), "from 0");
}

/// Collectives of one group in two streams keep their order, and computation waits for communication.
TEST_F(GpuRanks, TwoQueuesKeepTheirOrder) {
  const auto world = this->world();
  CommQueue queue(ctx_, /*overlap=*/true);
  constexpr std::int64_t kCount = 1 << 22;
  const Numbers numbers(ctx_, Dtype::f32, kCount);
  numbers.set([](std::int64_t) { return 1.0; });
  Event reduced(ctx_.device);
  constexpr int kRounds = 10;
  for (int i = 0; i < kRounds; ++i) {
    world->all_reduce(ctx_, numbers.tensor(), ReduceOp::sum);
    const Context& comm = queue.after(ctx_);
    world->all_reduce(comm, numbers.tensor(), ReduceOp::max);
    reduced.record(comm);
    reduced.wait(ctx_);
  }
  numbers.expect([&](std::int64_t) { return std::pow(world->size(), kRounds); }, "after all rounds");
}

/// Rows come and go beside what is computed of them, in buffers that are used again at once.
TEST_F(GpuRanks, CrossingsBringTheRowsAndSumsOfEveryRound) {
  const auto world = this->world();
  for (const bool sequence_parallel : {false, true})
    for (const bool overlap : {false, true})
      for (const std::int64_t rows : {1, 5, 2049, 1 << 18}) {
        SCOPED_TRACE(fmt::format("sp {} overlap {} rows {}", sequence_parallel, overlap, rows));
        Crossings crossings(ctx_, *world, sequence_parallel, overlap, rows);
        crossings.run();
        crossings.expect_right();
      }
}

std::vector<Layout> layouts(int ranks) {
  std::vector<Layout> all = {{.tp = ranks},
                             {.tp = ranks, .sequence_parallel = true, .accumulation = 2, .recompute = "selective"},
                             {.dp = ranks},
                             {.dp = ranks, .zero_stage = 1, .accumulation = 2},
                             {.dp = ranks, .zero_stage = 2, .accumulation = 2, .recompute = "full"},
                             {.dp = ranks, .zero_stage = 3, .accumulation = 2, .recompute = "selective"},
                             {.dp = ranks, .zero_stage = 3, .accumulation = 2, .resident_layers = 1}};
  if (ranks % 4 == 0)
    for (const int zero : {1, 3})
      all.push_back({.dp = ranks / 2, .tp = 2, .sequence_parallel = true, .zero_stage = zero, .accumulation = 2});
  return all;
}

TEST_F(GpuRanks, EveryLayoutIsTheFunctionOfOneGpu) {
  for (const char* family : {"llama3", "qwen2"}) {
    const std::vector<std::string> sets = {"precision.dtype=float32", "model.num_layers=3"};
    const LayoutRun expected = run_alone(ctx_, family, sets);
    for (const Layout& layout : layouts(test_world().size()))
      expect_equal_to_alone(ctx_, world(), family, layout, sets, expected, kFloat32Layout);
  }
}

TEST_F(GpuRanks, OverlapChangesNoBit) {
  const FaultPlan no_fault;
  for (const Layout& layout : layouts(test_world().size()))
    for (const char* wire : {"float32", "bf16"}) {
      if (layout.dp == 1 && std::string(wire) == "bf16") continue;
      SCOPED_TRACE(fmt::format("{} wire {}", layout.text(), wire));
      const auto hash = [&](const char* overlap) {
        const Config config = family_config("llama3",
                                            with(layout.sets(), {"precision.dtype=bf16", "model.num_layers=4",
                                                                 fmt::format("precision.grad_reduce_dtype={}", wire),
                                                                 fmt::format("comm.overlap={}", overlap)}),
                                            test_world().size());
        Engine engine(config, ctx_, world(), no_fault);
        load_golden_weights(engine);
        SampleSource source(engine);
        for (int step = 0; step < 3; ++step) engine.step(source.source(), step, 1e-3);
        return state_hash(engine);
      };
      EXPECT_EQ(hash("true"), hash("false"));
    }
}

/// With two ranks NCCL, too, adds each two numbers once.
TEST_F(GpuRanks, PeerCopiesChangeNoBit) {
  if (test_world().size() != 2) GTEST_SKIP() << "NCCL rounds in another order on more than two ranks";
  const FaultPlan no_fault;
  for (const Layout& layout : layouts(2))
    for (const char* wire : {"float32", "bf16"}) {
      if (layout.dp == 1 && std::string(wire) == "bf16") continue;
      SCOPED_TRACE(fmt::format("{} wire {}", layout.text(), wire));
      const auto hash = [&](std::unique_ptr<Communicator> world) {
        const Config config = family_config("llama3",
                                            with(layout.sets(), {"precision.dtype=bf16", "model.num_layers=4",
                                                                 fmt::format("precision.grad_reduce_dtype={}", wire)}),
                                            2);
        Engine engine(config, ctx_, std::move(world), no_fault);
        load_golden_weights(engine);
        SampleSource source(engine);
        for (int step = 0; step < 3; ++step) engine.step(source.source(), step, 1e-3);
        return state_hash(engine);
      };
      EXPECT_EQ(hash(peer_world()), hash(world()));
    }
}

/// An overflow on one rank alone: all skip the step and name the same tensor.
TEST_F(GpuRanks, AllSkipWhenOneOverflows) {
  for (const Layout& layout : layouts(test_world().size())) {
    SCOPED_TRACE(layout.text());
    const Config config = family_config("llama3", with(layout.sets(), {"precision.dtype=fp16"}), test_world().size());
    FaultPlan fault = FaultPlan::parse("rank=1,site=gradients,action=inf");
    fault.set_rank(test_world().rank(), test_world().size());
    Engine engine(config, ctx_, world(), fault);
    load_golden_weights(engine);
    const std::uint64_t before = state_hash(engine);
    SampleSource source(engine);
    engine.step(source.source(), 0, 1e-3);
    const UpdateState state = engine.state();
    EXPECT_EQ(state.skipped, 1);
    EXPECT_EQ(state.loss_scale, 32768);
    EXPECT_EQ(max_over_ranks(test_world(), state.first_bad), min_over_ranks(test_world(), state.first_bad));
    engine.restore_state(initial_update_state(config.precision));
    EXPECT_EQ(state_hash(engine), before) << "a skipped step changes no weight";
  }
}

}  // namespace
}  // namespace trainer::test
