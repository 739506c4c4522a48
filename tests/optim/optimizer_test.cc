#include "optim/optimizer.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <map>
#include <mutex>

#include "core/runtime/rng.h"
#include "optim/update_state.h"
#include "tests/optim/thread_communicator.h"

namespace trainer::test {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr ParamId kEmbedding = 0, kNorm = 1, kKey = 3, kDown = 5, kFrozen = 6, kHead = 7;

/// One of each kind: split rows with padding, replicated, KV heads (fewer than tp), split columns, not trainable.
std::vector<ParamDecl> declarations() {
  const auto normal = [](const char* name, int block, std::int64_t rows, std::int64_t cols, ParamSplit split) {
    return ParamDecl{.name = name, .block = block, .rows = rows, .cols = cols, .split = split, .init_std = 0.5};
  };
  std::vector<ParamDecl> decls = {
      normal("embedding", 0, 9, 8, ParamSplit::rows),
      {.name = "norm",
       .block = 1,
       .dims = 1,
       .rows = 8,
       .arrival = GradArrival::partial,
       .init = ParamInit::ones,
       .decay = false},
      normal("query", 1, 16, 8, ParamSplit::rows),
      normal("key", 1, 4, 8, ParamSplit::kv_rows),
      normal("value", 1, 4, 8, ParamSplit::kv_rows),
      normal("down", 1, 8, 40, ParamSplit::columns),
      normal("frozen", 1, 8, 8, ParamSplit::replicated),
      normal("head", 2, 9, 8, ParamSplit::rows),
  };
  decls[kEmbedding].padded_rows = decls.back().padded_rows = 12;
  decls[kFrozen].trainable = false;
  return decls;
}

/// Gradients are multiples of 1/16 below 1: sums of their squares are exact in any order.
double gradient(ParamId id, std::int64_t index, std::int64_t step) {
  const std::uint64_t key = mix_key(mix_key(99, static_cast<std::uint64_t>(id)), static_cast<std::uint64_t>(step));
  return std::floor(uniform_at(key, static_cast<std::uint64_t>(index)) * 31.0f - 15.0f) / 16.0;
}

struct Layout {
  int tp = 1, dp = 1, zero = 1;
};
const Layout kLayouts[] = {{2, 1, 1}, {4, 1, 1}, {1, 2, 1}, {1, 2, 2}, {1, 4, 2}, {2, 2, 2}, {2, 2, 1}};

std::string describe(const Layout& layout) {
  return fmt::format("tp {} dp {} zero {}", layout.tp, layout.dp, layout.zero);
}

/// Whole blocks in host memory.
class Blocks {
 public:
  Blocks(const ParamLayout& layout, const Mesh& mesh, Dtype dtype) : layout_(layout), mesh_(mesh), dtype_(dtype) {
    for (int b = 0; b < layout.num_blocks(); ++b)
      memory_.emplace_back(static_cast<std::size_t>(layout.numel(b) * dtype_size(dtype)));
  }
  Tensor whole(int block) {
    return tensor_over(memory_[static_cast<std::size_t>(block)].data(), dtype_, 1, layout_.numel(block));
  }
  Tensor part(int block) {
    const FlatRange range = layout_.shard(block, mesh_.zero().rank(), mesh_.zero().size());
    return whole(block).flat_range(range.first, range.count);
  }

 private:
  const ParamLayout& layout_;
  const Mesh& mesh_;
  Dtype dtype_;
  std::vector<std::vector<std::byte>> memory_;
};

class FakeWeights final : public WeightSource {
 public:
  FakeWeights(const ParamLayout& layout, const Mesh& mesh, Dtype dtype)
      : updates(static_cast<std::size_t>(layout.num_blocks())), blocks_(layout, mesh, dtype) {}
  Tensor acquire(const Context& /*ctx*/, int block) override { return blocks_.whole(block); }
  void release(const Context& /*ctx*/, int /*block*/) override {}
  Tensor shard(int block) override { return blocks_.part(block); }
  void updated(const Context& /*ctx*/, int block) override { ++updates[static_cast<std::size_t>(block)]; }
  std::vector<int> updates;  // calls of updated()

 private:
  Blocks blocks_;
};

class FakeGrads final : public GradSink {
 public:
  FakeGrads(const ParamLayout& layout, const Mesh& mesh, Dtype dtype) : blocks_(layout, mesh, dtype) {}
  void begin_micro_batch(bool /*first*/, bool /*last*/) override {}
  bool accumulate() const override { return false; }
  BlockGrads grads(const Context& /*ctx*/, int block) override { return {.flat = blocks_.whole(block), .vectors = {}}; }
  void ready(const Context& /*ctx*/, int /*block*/) override {}
  void finish(const Context& /*ctx*/) override {}
  Tensor shard(int block) override { return blocks_.part(block); }

 private:
  Blocks blocks_;
};

std::int64_t global_index(const ParamDecl& decl, const LocalParam& local, std::int64_t i) {
  return (local.global_row + i / local.cols) * decl.cols + local.global_col + i % local.cols;
}

/// One rank: its part of the model, its optimizer, and a step as the trainer makes it.
class Rank {
 public:
  Rank(const Config& config, const Layout& shape, std::unique_ptr<Communicator> world,
       std::int64_t piece_elements = Optimizer::kPieceElements)
      : config_(config),
        piece_elements_(piece_elements),
        mesh(std::move(world),
             {.tp = shape.tp, .dp = shape.dp, .zero = shape.zero, .kv_replicas = std::max(1, shape.tp / 2)}),
        layout(declarations(), {.rank = mesh.tp().rank(), .size = shape.tp, .kv_heads = 2}, shape.zero),
        dtype_(weight_dtype(config.precision.dtype)),
        weights(layout, mesh, dtype_),
        grads(layout, mesh, accumulator_dtype(dtype_)),
        arena_({}, measure()),
        optimizer(config, layout, mesh, arena_, {}, piece_elements),
        state(initial_update_state(config.precision)) {
    optimizer.initialize(ctx_, weights);
  }

  void set_gradient(ParamId id, std::int64_t index, double value) {
    const Tensor tensor = layout.view(grads.grads({}, layout.decl(id).block).flat, id);
    if (tensor.dtype == Dtype::f64)
      tensor.as<double>()[index] = value;
    else
      tensor.as<float>()[index] = static_cast<float>(value);
  }
  /// Stored as after the backward pass of step `step` with loss_scale, grad_scale 1/4 and 4 target tokens.
  void make_gradients(std::int64_t step) {
    for (ParamId id = 0; id < layout.num_params(); ++id) {
      const LocalParam& local = layout.local(id);
      for (std::int64_t i = 0; i < local.numel(); ++i) {
        const bool padding = local.global_row + i / local.cols >= layout.decl(id).rows;
        set_gradient(id, i,
                     padding ? 0.0 : state.loss_scale * gradient(id, global_index(layout.decl(id), local, i), step));
      }
    }
  }
  void step(double lr) {
    double norm[] = {0.0, kInf};
    double sums[] = {10.0, 0.0, 4.0};
    const Tensor norm_tensor = tensor_over(norm, Dtype::f64, 1, 2);
    optimizer.accumulate_norm(ctx_, grads, norm_tensor);
    optimizer.reduce_norm(ctx_, mesh, norm_tensor);
    ops::prepare_update(ctx_, {.state = &state,
                               .norm = norm_tensor,
                               .sums = tensor_over(sums, Dtype::f64, 1, 3),
                               .grad_scale = 0.25,
                               .clip_grad_norm = config_.optimizer.clip_grad_norm,
                               .scaling = uses_loss_scaling(config_.precision),
                               .scale = config_.precision.loss_scale});
    optimizer.step(ctx_, weights, grads, &state, lr);
  }

  /// visit(id, global index, master, m, v) for the elements of this rank's shard, padding included.
  template <class Visit>
  void visit_shard(const Visit& visit) {
    for (int block = 0; block < layout.num_blocks(); ++block) {
      const FlatRange range = optimizer.range(block);
      ops::ShardTensors shard = optimizer.tensors(block);
      shard.weight = weights.shard(block);
      std::vector<double> master(static_cast<std::size_t>(range.count)), m = master, v = master;
      ops::master_read(ctx_, {shard, over(master)});
      if (shard.m) ops::master_read(ctx_, {moment_as_master(shard.m), over(m)});
      if (shard.v) ops::master_read(ctx_, {moment_as_master(shard.v), over(v)});
      for (const ParamId id : layout.params(block)) {
        const LocalParam& local = layout.local(id);
        const FlatRange here = intersect({local.offset, local.numel()}, range);
        for (std::int64_t i = here.first; i < here.end(); ++i) {
          const auto at = static_cast<std::size_t>(i - range.first);
          visit(id, global_index(layout.decl(id), local, i - local.offset), master[at], m[at], v[at]);
        }
      }
    }
  }

  const Config& config_;
  std::int64_t piece_elements_;
  Mesh mesh;
  ParamLayout layout;
  Dtype dtype_;
  FakeWeights weights;
  FakeGrads grads;
  Arena arena_;
  Optimizer optimizer;
  UpdateState state;
  Context ctx_;

 private:
  MemoryPlan measure() {
    Arena measuring;
    const Optimizer planned(config_, layout, mesh, measuring, {}, piece_elements_);
    return measuring.plan();
  }
  static Tensor over(std::vector<double>& x) {
    return tensor_over(x.data(), Dtype::f64, 1, static_cast<std::int64_t>(x.size()));
  }
  /// A moment read as if it were a weight without hidden bits: bf16 with low bits zero.
  ops::ShardTensors moment_as_master(const Tensor& moment) {
    ops::ShardTensors shard;
    shard.weight = moment;
    if (moment.dtype == Dtype::bf16) {
      zeros_.assign(static_cast<std::size_t>(moment.numel()), 0);
      shard.low = tensor_over(zeros_.data(), Dtype::u16, 1, moment.numel());
    }
    return shard;
  }
  std::vector<std::uint16_t> zeros_;
};

struct Element {
  double master, m, v;
  bool operator==(const Element&) const = default;
};
/// The whole model by (parameter, global index).
using Model = std::map<std::pair<ParamId, std::int64_t>, Element>;

Model shard_of(Rank& rank) {
  Model model;
  rank.visit_shard([&](ParamId id, std::int64_t index, double master, double m, double v) {
    model[{id, index}] = {master, m, v};
  });
  return model;
}

Config config_for(Precision precision, MomentsDtype moments = MomentsDtype::automatic) {
  Config config;
  config.precision.dtype = precision;
  config.optimizer.moments_dtype = moments;
  config.optimizer.clip_grad_norm = 0.5;  // low enough to act
  return config;
}

/// The model after `steps` steps; every rank that holds an element must hold the same bits.
Model train(const Config& config, const Layout& shape, std::int64_t steps,
            std::int64_t piece_elements = Optimizer::kPieceElements) {
  Model model;
  std::mutex mutex;
  run_ranks(shape.tp * shape.dp, [&](std::unique_ptr<Communicator> world) {
    Rank rank(config, shape, std::move(world), piece_elements);
    for (std::int64_t step = 0; step < steps; ++step) {
      rank.make_gradients(step);
      rank.step(0.01);
    }
    const std::scoped_lock lock(mutex);
    rank.visit_shard([&](ParamId id, std::int64_t index, double master, double m, double v) {
      const Element element{master, m, v};
      const auto [place, is_new] = model.try_emplace({id, index}, element);
      EXPECT_TRUE(is_new || place->second == element) << describe(shape) << ": copies of " << id << " differ";
    });
  });
  return model;
}

void expect_same_in_every_layout(const Config& config) {
  const Model alone = train(config, {}, 3);
  for (const Layout& layout : kLayouts) EXPECT_TRUE(train(config, layout, 3) == alone) << describe(layout);
}

TEST(Optimizer, EveryLayoutGivesTheBitsOfOneProcess) {
  for (const Precision precision : {Precision::float64, Precision::float32, Precision::bf16, Precision::fp16})
    expect_same_in_every_layout(config_for(precision));
  Config sgd = config_for(Precision::bf16);
  sgd.optimizer.name = OptimizerName::sgd;
  expect_same_in_every_layout(sgd);
}

TEST(Optimizer, StochasticMomentsDoNotDependOnTheLayout) {
  expect_same_in_every_layout(config_for(Precision::bf16, MomentsDtype::bf16));
  expect_same_in_every_layout(config_for(Precision::float32, MomentsDtype::bf16));
}

/// State that comes and goes in pieces: of a few elements, cut anywhere, and of whole shards.
TEST(Optimizer, OffloadedStateGivesTheSameBits) {
  for (const Precision precision : {Precision::float64, Precision::float32, Precision::bf16, Precision::fp16})
    for (const MomentsDtype moments : {MomentsDtype::automatic, MomentsDtype::bf16}) {
      if (precision == Precision::float64 && moments == MomentsDtype::bf16) continue;
      Config config = config_for(precision, moments);
      const Model resident = train(config, {}, 3);
      config.optimizer.offload = true;
      for (const std::int64_t piece : {std::int64_t{7}, std::int64_t{64}, Optimizer::kPieceElements})
        for (const Layout& layout : {Layout{}, Layout{2, 2, 2}})
          EXPECT_TRUE(train(config, layout, 3, piece) == resident) << describe(layout) << " pieces of " << piece;
    }
}

TEST(Optimizer, OffloadedStateIsOnTheHost) {
  Config config = config_for(Precision::bf16);
  config.optimizer.offload = true;
  Arena measuring;
  run_ranks(1, [&](std::unique_ptr<Communicator> world) {
    const Mesh mesh(std::move(world), {});
    const ParamLayout layout(declarations(), {.kv_heads = 2}, 1);
    const Optimizer optimizer(config, layout, mesh, measuring, {}, 64);
    EXPECT_TRUE(optimizer.offloaded());
  });
  const auto bytes = [&](MemoryClass c) { return measuring.plan()[static_cast<std::size_t>(c)]; };
  EXPECT_EQ(bytes(MemoryClass::masters), 0);
  EXPECT_EQ(bytes(MemoryClass::moments), 0);
  EXPECT_GT(bytes(MemoryClass::host), 0);
  EXPECT_EQ(bytes(MemoryClass::communication), 2 * 3 * 256) << "low bits and two moments, 64 elements each, twice";
}

TEST(Optimizer, CountsEveryElementOfTheModelOnceInTheNorm) {
  double squares = 0;
  const std::vector<ParamDecl> decls = declarations();
  for (ParamId id = 0; id < static_cast<ParamId>(decls.size()); ++id) {
    const ParamDecl& decl = decls[static_cast<std::size_t>(id)];
    for (std::int64_t i = 0; decl.trainable && i < decl.rows * decl.cols; ++i)
      squares += std::pow(gradient(id, i, 0), 2);
  }
  const Config config = config_for(Precision::float32);
  for (const Layout& layout : kLayouts) {
    run_ranks(layout.tp * layout.dp, [&](std::unique_ptr<Communicator> world) {
      Rank rank(config, layout, std::move(world));
      rank.make_gradients(0);
      rank.step(0.01);
      EXPECT_DOUBLE_EQ(rank.state.grad_norm, std::sqrt(squares)) << describe(layout);
      EXPECT_DOUBLE_EQ(rank.state.grad_factor, 0.5 / (std::sqrt(squares) + 1e-6)) << describe(layout);
    });
  }
}

// Infinity in one shard of the last rank: everybody skips, backs off alike and names the same tensor. With tp 4 the key
// is there a copy that does not count; under ZeRO the last rank's shard begins inside `down`, behind the key.
TEST(Optimizer, OneBadShardStopsTheStepOnEveryRank) {
  Config config = config_for(Precision::fp16);
  for (const Layout& layout : kLayouts) {
    run_ranks(layout.tp * layout.dp, [&](std::unique_ptr<Communicator> world) {
      const bool last = world->rank() == world->size() - 1;
      Rank rank(config, layout, std::move(world));
      const Model before = shard_of(rank);
      rank.make_gradients(0);
      if (last) {
        for (const ParamId id : {kDown, kKey})
          for (std::int64_t i = 0; i < rank.layout.local(id).numel(); ++i) rank.set_gradient(id, i, kInf);
      }
      rank.step(0.01);
      EXPECT_EQ(rank.state.first_bad, layout.zero == 1 ? kKey : kDown) << describe(layout);
      EXPECT_EQ(rank.state.skipped, 1) << describe(layout);
      EXPECT_EQ(rank.state.loss_scale, 32768.0) << describe(layout);
      EXPECT_EQ(rank.state.updates, 0) << describe(layout);
      EXPECT_TRUE(shard_of(rank) == before) << describe(layout);
    });
  }
}

// Drawn by (seed, name, global index), whatever the layout; rounded to bf16 half away from zero; padding is zero.
TEST(Optimizer, InitialWeightsFollowTheDeclarationInEveryLayout) {
  const Config config = config_for(Precision::bf16);
  const std::uint64_t stream = mix_key(static_cast<std::uint64_t>(config.train.seed), "init");
  for (const Layout& layout : kLayouts) {
    run_ranks(layout.tp * layout.dp, [&](std::unique_ptr<Communicator> world) {
      Rank rank(config, layout, std::move(world));
      for (ParamId id = 0; id < rank.layout.num_params(); ++id) {
        const ParamDecl& decl = rank.layout.decl(id);
        const LocalParam& local = rank.layout.local(id);
        const Tensor weight = rank.layout.view(rank.weights.acquire({}, decl.block), id);
        for (std::int64_t i = 0; i < local.numel(); ++i) {
          const auto index = static_cast<std::uint64_t>(global_index(decl, local, i));
          double value = decl.init == ParamInit::ones ? 1.0 : 0.5 * normal_at(mix_key(stream, decl.name), index);
          if (local.global_row + i / local.cols >= decl.rows) value = 0.0;
          const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(value));
          EXPECT_EQ(weight.as<Bfloat16>()[i].bits, (bits + 0x8000u) >> 16) << decl.name << ", " << i;
        }
      }
    });
  }
}

// Without gradients AdamW only decays: w (1 - lr x weight_decay), and only where the declaration says so.
TEST(Optimizer, DecaysWhatIsDeclaredToDecay) {
  Config config = config_for(Precision::float64);
  run_ranks(1, [&](std::unique_ptr<Communicator> world) {
    Rank rank(config, {}, std::move(world));
    const Model before = shard_of(rank);
    rank.step(0.1);
    const Model after = shard_of(rank);
    for (const auto& [key, element] : before) {
      const bool decays = rank.layout.decl(key.first).decay && rank.layout.decl(key.first).trainable;
      EXPECT_DOUBLE_EQ(after.at(key).master, element.master * (decays ? 1.0 - 0.1 * 0.1 : 1.0)) << key.first;
    }
    EXPECT_EQ(before.at({kNorm, 0}).master, 1.0);
  });
}

TEST(Optimizer, LeavesFrozenParametersAndPaddingAlone) {
  const Config config = config_for(Precision::float32);
  const Model start = train(config, {}, 0), end = train(config, {}, 2);
  for (const auto& [key, element] : start) {
    const bool frozen =
        key.first == kFrozen || ((key.first == kEmbedding || key.first == kHead) && key.second >= 9 * 8);
    EXPECT_EQ(end.at(key) == element, frozen) << key.first << ", " << key.second;
  }
}

TEST(Optimizer, HoldsOnlyTheStateThatTheRunNeeds) {
  Config config = config_for(Precision::fp16, MomentsDtype::bf16);
  const auto check = [&](bool m, bool v, Dtype moments, bool low, bool master) {
    run_ranks(2, [&](std::unique_ptr<Communicator> world) {
      Rank rank(config, {.dp = 2, .zero = 2}, std::move(world));
      const ops::ShardTensors& state = rank.optimizer.tensors(1);
      EXPECT_EQ(rank.optimizer.range(1).count, rank.layout.numel(1) / 2);
      EXPECT_EQ(rank.optimizer.range(1).first, rank.mesh.zero().rank() * rank.layout.numel(1) / 2);
      EXPECT_EQ(static_cast<bool>(state.m), m);
      EXPECT_EQ(static_cast<bool>(state.v), v);
      EXPECT_EQ(static_cast<bool>(state.low), low);
      EXPECT_EQ(static_cast<bool>(state.master), master);
      EXPECT_TRUE(!m || state.m.dtype == moments);
      rank.step(0.1);
      EXPECT_EQ(rank.weights.updates, std::vector<int>(3, 1));
    });
  };
  check(true, true, Dtype::bf16, false, true);
  config = config_for(Precision::bf16);
  check(true, true, Dtype::f32, true, false);
  config.optimizer.name = OptimizerName::sgd;
  check(true, false, Dtype::f32, true, false);
  config.optimizer.momentum = 0;
  check(false, false, Dtype::f32, true, false);
  config = config_for(Precision::float64);
  check(true, true, Dtype::f64, false, false);
}

}  // namespace
}  // namespace trainer::test
