// Gradients are summed over exactly the ranks that hold a part of them, in every layout; weights become whole again.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "core/runtime/rng.h"
#include "kernels/ops.h"
#include "parallel/grad_sink.h"
#include "parallel/host_exchange.h"
#include "parallel/weight_source.h"
#include "tests/parallel/element_types.h"
#include "tests/support/mpi_world.h"

namespace trainer {
namespace {

const Context kHost;
constexpr std::int64_t kKvHeads = 2;

/// One parameter of each kind that models have, in three blocks.
std::vector<ParamDecl> declarations() {
  const auto partial = GradArrival::partial;
  std::vector<ParamDecl> decls;
  decls.push_back({.name = "embed", .block = 0, .rows = 13, .cols = 3, .padded_rows = 16, .split = ParamSplit::rows});
  decls.push_back({.name = "norm", .block = 1, .dims = 1, .rows = 7, .arrival = partial});
  decls.push_back({.name = "norm_bias", .block = 1, .dims = 1, .rows = 70, .arrival = partial});
  decls.push_back({.name = "q", .block = 1, .rows = 16, .cols = 5, .split = ParamSplit::rows});
  decls.push_back({.name = "k", .block = 1, .rows = 4, .cols = 5, .split = ParamSplit::kv_rows});
  decls.back().fused_with_previous = true;
  decls.push_back({.name = "v", .block = 1, .rows = 4, .cols = 5, .split = ParamSplit::kv_rows});
  decls.back().fused_with_previous = true;
  decls.push_back({.name = "o", .block = 1, .rows = 3, .cols = 16, .split = ParamSplit::columns});
  decls.push_back({.name = "o_bias", .block = 1, .dims = 1, .rows = 5, .arrival = partial});
  decls.push_back({.name = "whole", .block = 2, .rows = 9, .cols = 3});
  return decls;
}

/// All layouts that the ranks of the test allow.
std::vector<MeshShape> shapes() {
  std::vector<MeshShape> all;
  const int size = test_world().size();
  for (int tp = 1; tp <= size; tp *= 2)
    for (int zero = 1; zero <= size / tp; zero *= 2)
      all.push_back({.tp = tp, .dp = size / tp, .zero = zero, .kv_replicas = std::max(1, tp / int{kKvHeads})});
  return all;
}

std::string describe(const MeshShape& s) {
  return fmt::format("tp {} dp {} zero {} kv replicas {}", s.tp, s.dp, s.zero, s.kv_replicas);
}

/// A sink with memory behind it.
struct Sink {
  Mesh mesh;
  ParamLayout layout;
  CommQueue queue;
  Arena arena;
  ReducingGradSink sink;

  Sink(const MeshShape& shape, const ReducingGradSink::Options& options)
      : mesh(new_test_world(), shape),
        layout(declarations(), {.rank = mesh.tp().rank(), .size = shape.tp, .kv_heads = kKvHeads}, shape.zero),
        queue(kHost, /*overlap=*/true),
        arena(Device{}, plan(options)),
        sink(layout, mesh, options, queue, arena) {}

 private:
  MemoryPlan plan(const ReducingGradSink::Options& options) {
    Arena measuring;
    const ReducingGradSink measured(layout, mesh, options, queue, measuring);
    return measuring.plan();
  }
};

/// What rank (tp, dp) finds for one element of the global tensor in one micro-batch: 1, 2 or 3, so that sums over 8
/// ranks are exact even in bf16. Ranks that hold parts of the same gradient find different values.
double contribution(const ParamDecl& decl, int tp_rank, int dp_rank, std::int64_t row, std::int64_t col) {
  const bool same_on_tp = decl.split == ParamSplit::replicated && decl.arrival == GradArrival::whole;
  const std::int64_t tp = same_on_tp ? 0 : tp_rank;
  return static_cast<double>(1 + (row * decl.cols + col + 2 * tp + dp_rank) % 3);
}

/// The sum over all ranks that contribute to this element, from the declaration alone.
double expected_sum(const ParamDecl& decl, const MeshShape& shape, int tp_rank, std::int64_t row, std::int64_t col) {
  int first = tp_rank, count = 1;
  if (decl.split == ParamSplit::replicated && decl.arrival == GradArrival::partial) first = 0, count = shape.tp;
  if (decl.split == ParamSplit::kv_rows)
    first = tp_rank / shape.kv_replicas * shape.kv_replicas, count = shape.kv_replicas;
  double sum = 0;
  for (int dp = 0; dp < shape.dp; ++dp)
    for (int tp = first; tp < first + count; ++tp) sum += contribution(decl, tp, dp, row, col);
  return sum;
}

/// Writes value(id, index in the flat buffer, index in the parameter) to the gradients of a block, or adds it to what
/// earlier micro-batches left there.
template <class Value>
void write(Sink& s, int block, const Value& value) {
  const BlockGrads grads = s.sink.grads(kHost, block);
  for (const ParamId id : s.layout.params(block)) {
    const Tensor gradient = grads.view(s.layout, id, id).flat();
    for (std::int64_t i = 0; i < gradient.cols; ++i) {
      double element = value(id, s.layout.local(id).offset + i, i);
      const Tensor at = gradient.col_range(i, 1), wide = tensor_over(&element, Dtype::f64, 1, 1);
      double before = 0;
      if (s.sink.accumulate()) ops::cast(kHost, {.in = at, .out = tensor_over(&before, Dtype::f64, 1, 1)});
      element += before;
      ops::cast(kHost, {.in = wide, .out = at});
    }
  }
}

void write_gradients(Sink& s, int block) {
  write(s, block, [&](ParamId id, std::int64_t /*at*/, std::int64_t i) {
    const LocalParam& local = s.layout.local(id);
    return contribution(s.layout.decl(id), s.mesh.tp().rank(), s.mesh.dp().rank(), local.global_row + i / local.cols,
                        local.global_col + i % local.cols);
  });
}

template <class T>
void expect_sums(Sink& s, int block, double micro_batches) {
  const Tensor shard = s.sink.shard(block);
  const FlatRange range = s.layout.shard(block, s.mesh.zero().rank(), s.mesh.zero().size());
  ASSERT_EQ(shard.numel(), range.count);
  for (const ParamId id : s.layout.params(block)) {
    const LocalParam& local = s.layout.local(id);
    for (std::int64_t i = 0; i < local.numel(); ++i) {
      const std::int64_t at = local.offset + i - range.first;
      if (at < 0 || at >= range.count) continue;
      const double expected =
          micro_batches * expected_sum(s.layout.decl(id), s.mesh.shape(), s.mesh.tp().rank(),
                                       local.global_row + i / local.cols, local.global_col + i % local.cols);
      ASSERT_EQ(static_cast<double>(shard.as<T>()[at]), expected) << s.layout.decl(id).name << " element " << i;
    }
  }
}

/// `weights`: T.
template <class T>
void check_layout(const MeshShape& shape, Dtype wire, Dtype weights, bool sharded) {
  SCOPED_TRACE(describe(shape) + (sharded ? " sharded" : ""));
  Sink s(shape, {.accumulator = DtypeOf<T>::value, .wire = wire, .weights = weights, .sharded = sharded});
  for (int step = 0; step < 2; ++step)  // the second starts from what the first left behind
    for (int micro_batch = 0; micro_batch < 2; ++micro_batch) {
      s.sink.begin_micro_batch(micro_batch == 0, micro_batch == 1);
      EXPECT_EQ(s.sink.accumulate(), micro_batch == 1 && !(sharded && shape.zero > 1));
      for (int block = s.layout.num_blocks() - 1; block >= 0; --block) {
        write_gradients(s, block);
        s.sink.ready(kHost, block);
      }
      s.sink.finish(kHost);
    }
  for (int block = 0; block < s.layout.num_blocks(); ++block) expect_sums<T>(s, block, 2);
}

TEST(GradSink, SumsOverTheRanksThatContribute) {
  for (const MeshShape& shape : shapes())
    for (const bool sharded : {false, true}) {
      check_layout<double>(shape, Dtype::f64, Dtype::f64, sharded);
      check_layout<float>(shape, Dtype::f32, Dtype::bf16, sharded);
      check_layout<float>(shape, Dtype::bf16, Dtype::f16, sharded);
      check_layout<float>(shape, Dtype::bf16, Dtype::bf16, sharded);
    }
}

/// The head writes the embedding's gradient first, all blocks follow, and the embedding adds to it last.
TEST(GradSink, TiedGradientsStayUntilBothAreAdded) {
  const int size = test_world().size();
  Sink s({.tp = 1, .dp = size, .zero = size}, {.sharded = true, .tied = true});
  s.sink.begin_micro_batch(true, true);
  const int last = s.layout.num_blocks() - 1;
  const auto add = [&](int block, float value, bool accumulate) {
    const Tensor grads = s.sink.grads(kHost, block).flat;
    for (std::int64_t i = 0; i < grads.numel(); ++i)
      grads.as<float>()[i] = value + (accumulate ? grads.as<float>()[i] : 0.0F);
  };
  add(last, 5, false);
  add(0, 1, false);
  s.sink.ready(kHost, last);
  for (int block = last - 1; block > 0; --block) {
    add(block, static_cast<float>(10 * block), false);
    s.sink.ready(kHost, block);
  }
  add(0, 2, true);
  s.sink.ready(kHost, 0);
  s.sink.finish(kHost);
  for (int block = 0; block <= last; ++block) {
    const float each = block == 0 ? 3.0F : block == last ? 5.0F : static_cast<float>(10 * block);
    const Tensor shard = s.sink.shard(block);
    for (std::int64_t i = 0; i < shard.numel(); ++i)
      ASSERT_EQ(shard.as<float>()[i], each * static_cast<float>(size)) << "block " << block;
  }
}

/// Zeros between and behind the parameters, whatever block had the buffer before.
void fill_with_noise(Sink& s, int block) {
  if (!s.sink.accumulate()) ops::fill(kHost, {.x = s.sink.grads(kHost, block).flat, .value = 0.0});
  const auto key = static_cast<std::uint64_t>(test_world().rank());
  write(s, block, [&](ParamId /*id*/, std::int64_t at, std::int64_t /*i*/) {
    return static_cast<double>(static_cast<float>(normal_at(key, static_cast<std::uint64_t>(at))));
  });
}

/// The sums of all blocks of a dp-only layout, gathered from the shards; blocks cut to `lengths`, because padding
/// depends on the ZeRO size.
std::vector<std::vector<float>> reduced_noise(int zero, Dtype wire, bool sharded,
                                              const std::vector<std::int64_t>& lengths) {
  const int size = test_world().size();
  Sink s({.tp = 1, .dp = size, .zero = zero}, {.wire = wire, .sharded = sharded});
  s.sink.begin_micro_batch(true, true);
  std::vector<std::vector<float>> blocks;
  for (int block = 0; block < s.layout.num_blocks(); ++block) {
    fill_with_noise(s, block);
    s.sink.ready(kHost, block);
    std::vector<float> whole(static_cast<std::size_t>(s.layout.numel(block)));
    s.mesh.zero().all_gather(kHost, s.sink.shard(block), tensor_of(whole));
    whole.resize(static_cast<std::size_t>(lengths[static_cast<std::size_t>(block)]));
    blocks.push_back(std::move(whole));
  }
  return blocks;
}

/// With one micro-batch: with several, shards are added up after the reduction instead of before it.
TEST(GradSink, ZeroOneAndTwoHaveTheBitsOfZeroZero) {
  const ParamLayout layout(declarations(), {}, 1);
  std::vector<std::int64_t> lengths(static_cast<std::size_t>(layout.num_blocks()));
  for (int block = 0; block < layout.num_blocks(); ++block)
    lengths[static_cast<std::size_t>(block)] = layout.numel(block);
  for (const Dtype wire : {Dtype::f32, Dtype::bf16}) {
    const auto replicated = reduced_noise(1, wire, false, lengths);
    for (const bool sharded : {false, true}) {
      const auto parts = reduced_noise(test_world().size(), wire, sharded, lengths);
      for (std::size_t block = 0; block < replicated.size(); ++block)
        EXPECT_EQ(std::memcmp(replicated[block].data(), parts[block].data(), replicated[block].size() * sizeof(float)),
                  0);
    }
  }
}

TEST(GradSink, Bfloat16OnTheWireIsTheRoundedSumOfRoundedGradients) {
  const int size = test_world().size();
  Sink s({.tp = 1, .dp = size, .zero = size}, {.wire = Dtype::bf16});
  s.sink.begin_micro_batch(true, true);
  fill_with_noise(s, 1);
  s.sink.ready(kHost, 1);
  const FlatRange range = s.layout.shard(1, s.mesh.zero().rank(), size);
  std::vector<bool> written(static_cast<std::size_t>(s.layout.numel(1)));
  for (const ParamId id : s.layout.params(1))
    std::fill_n(written.begin() + s.layout.local(id).offset, s.layout.local(id).numel(), true);
  int rounded = 0;
  for (std::int64_t i = 0; i < range.count; ++i) {
    if (!written[static_cast<std::size_t>(range.first + i)]) continue;
    const auto index = static_cast<std::uint64_t>(range.first + i);
    float sum = 0, exact = 0;
    for (int r = 0; r < size; ++r) {
      const auto gradient = static_cast<float>(normal_at(static_cast<std::uint64_t>(r), index));
      sum += static_cast<float>(Bfloat16(gradient));
      exact += gradient;
    }
    // One rank has no wire.
    const float expected = size == 1 ? exact : static_cast<float>(Bfloat16(sum));
    ASSERT_EQ(s.sink.shard(1).as<float>()[i], expected);
    rounded += expected != exact ? 1 : 0;
  }
  EXPECT_EQ(max_over_ranks(test_world(), rounded) > 0, size > 1);
}

/// The shards after two steps of two micro-batches of noise.
std::vector<std::vector<float>> shards_of_noise(const MeshShape& shape, ReducingGradSink::Options options) {
  options.wire = Dtype::bf16;
  options.sharded = true;
  Sink s(shape, options);
  for (int step = 0; step < 2; ++step)
    for (int micro_batch = 0; micro_batch < 2; ++micro_batch) {
      s.sink.begin_micro_batch(micro_batch == 0, micro_batch == 1);
      for (int block = s.layout.num_blocks() - 1; block >= 0; --block) {
        fill_with_noise(s, block);
        s.sink.ready(kHost, block);
      }
      s.sink.finish(kHost);
    }
  std::vector<std::vector<float>> shards;
  for (int block = 0; block < s.layout.num_blocks(); ++block) {
    const Tensor shard = s.sink.shard(block);
    shards.emplace_back(shard.as<float>(), shard.as<float>() + shard.numel());
  }
  return shards;
}

TEST(GradSink, WritingInTheTypeOfTheWireAndPiecesChangeNoBit) {
  for (const MeshShape& shape : shapes()) {
    SCOPED_TRACE(describe(shape));
    const auto copied = shards_of_noise(shape, {.weights = Dtype::f32});
    EXPECT_EQ(shards_of_noise(shape, {.weights = Dtype::bf16}), copied);
    EXPECT_EQ(shards_of_noise(shape, {.weights = Dtype::f32, .wire_numel = 1}), copied);
  }
}

TEST(GradSink, TheWireBufferIsPlannedOnlyWhereThereIsAWire) {
  const auto wire_bytes = [](const MeshShape& shape, Dtype wire) {
    const Mesh mesh(new_test_world(), shape);
    const ParamLayout layout(declarations(), {.rank = mesh.tp().rank(), .size = shape.tp, .kv_heads = kKvHeads}, 1);
    Arena measuring;
    CommQueue queue(kHost, true);
    const ReducingGradSink sink(layout, mesh, {.wire = wire}, queue, measuring);
    return measuring.plan()[static_cast<std::size_t>(MemoryClass::communication)];
  };
  const int size = test_world().size();
  EXPECT_EQ(wire_bytes({.tp = 1, .dp = size}, Dtype::f32), 0);
  EXPECT_EQ(wire_bytes({.tp = 1, .dp = size}, Dtype::bf16) > 0, size > 1);
  const MeshShape no_dp{.tp = size, .dp = 1, .kv_replicas = std::max(1, size / int{kKvHeads})};
  EXPECT_EQ(wire_bytes(no_dp, Dtype::bf16), wire_bytes(no_dp, Dtype::f32));  // room for partial gradients only
}

TEST(GradSink, MatricesInTheTypeOfTheWireTakeHalfOfASlot) {
  const int size = test_world().size();
  const Mesh mesh(new_test_world(), {.tp = 1, .dp = size, .zero = size});
  const ParamLayout layout(declarations(), {}, size);
  CommQueue queue(kHost, true);
  const auto bytes = [&](const char* buffer, Dtype weights) {
    Arena measuring;
    const ReducingGradSink sink(layout, mesh, {.wire = Dtype::bf16, .weights = weights, .sharded = true}, queue,
                                measuring);
    for (const Arena::Buffer& taken : measuring.largest())
      if (taken.name == buffer) return taken.bytes;
    return std::int64_t{0};
  };
  const std::int64_t saved = bytes("gradients of a block", Dtype::f32) - bytes("gradients of a block", Dtype::bf16);
  EXPECT_EQ(saved, size == 1 ? 0 : 2 * layout.numel(1)) << "block 1 is the only one between embedding and head";
  EXPECT_EQ(bytes("gradients of a block's vectors", Dtype::f32), 0);
  EXPECT_EQ(bytes("gradients of a block's vectors", Dtype::bf16) > 0, size > 1);
}

/// Weights of either kind with memory behind them.
template <class Weights, class... Options>
struct Source {
  Arena arena;
  Weights weights;
  Source(const ParamLayout& layout, const Mesh& mesh, CommQueue& queue, Options... options)
      : arena(Device{}, plan(layout, mesh, queue, options...)), weights(layout, mesh, options..., queue, arena) {}

 private:
  static MemoryPlan plan(const ParamLayout& layout, const Mesh& mesh, CommQueue& queue, Options... options) {
    Arena measuring;
    const Weights measured(layout, mesh, options..., queue, measuring);
    return measuring.plan();
  }
};

void expect_updates_arrive(WeightSource& weights, const ParamLayout& layout, const Mesh& mesh) {
  for (const int update : {1, 2}) {
    const auto value = [&](int block, std::int64_t i) { return static_cast<float>(1000 * (3 * update + block) + i); };
    for (int block = 0; block < layout.num_blocks(); ++block) {
      const FlatRange range = layout.shard(block, mesh.zero().rank(), mesh.zero().size());
      const Tensor shard = weights.shard(block);
      ASSERT_EQ(shard.numel(), range.count);
      for (std::int64_t i = 0; i < range.count; ++i) shard.as<float>()[i] = value(block, range.first + i);
      weights.updated(kHost, block);
    }
    for (const int block : {0, 1, 2, 1, 0}) {  // forward and backward
      const Tensor whole = weights.acquire(kHost, block);
      if (block == 1) weights.prefetch(kHost, 2);
      ASSERT_EQ(whole.numel(), layout.numel(block));
      for (std::int64_t i = 0; i < layout.numel(block); ++i) ASSERT_EQ(whole.as<float>()[i], value(block, i));
      weights.release(kHost, block);
    }
  }
}

TEST(WeightSource, AnUpdateOfTheShardsReachesEveryRank) {
  for (const MeshShape& shape : shapes()) {
    SCOPED_TRACE(describe(shape));
    const Mesh mesh(new_test_world(), shape);
    const ParamLayout layout(declarations(), {.rank = mesh.tp().rank(), .size = shape.tp, .kv_heads = kKvHeads},
                             shape.zero);
    CommQueue queue(kHost, true);
    Source<ResidentWeights, Dtype> resident(layout, mesh, queue, Dtype::f32);
    expect_updates_arrive(resident.weights, layout, mesh);
    for (const bool tied : {false, true})
      for (const std::int64_t layers : {0, 1}) {
        Source<GatheringWeights, GatheringWeights::Options> gathering(layout, mesh, queue,
                                                                      {.tied = tied, .resident_layers = layers});
        expect_updates_arrive(gathering.weights, layout, mesh);
      }
  }
}

TEST(GatheringWeights, RefuseToFetchOverABlockInUse) {
  const Mesh mesh(new_test_world(), {.tp = 1, .dp = test_world().size(), .zero = test_world().size()});
  const ParamLayout layout(declarations(), {}, test_world().size());
  CommQueue queue(kHost, true);
  Source<GatheringWeights, GatheringWeights::Options> source(layout, mesh, queue, {});
  source.weights.acquire(kHost, 0);
  EXPECT_THROW(source.weights.acquire(kHost, 2), Error);
  source.weights.release(kHost, 0);
  EXPECT_NO_THROW(source.weights.acquire(kHost, 2));
}

}  // namespace
}  // namespace trainer
