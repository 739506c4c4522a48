// The optimizer's bits are those of the CPU.
#include <cmath>
#include <limits>

#include "tests/gpu/twin.h"

namespace trainer::testing {
namespace {

constexpr std::int64_t kSizes[] = {1, 7, 8, 1000, 4099, 70001};

TEST(GpuSquaredNorm, SumAndFirstBadTensor) {
  TRAINER_REQUIRE_GPU();
  for (const std::int64_t n : {1, 3, 5, 1000, 20000, 1000003})
    for (const std::int64_t first : {0, 1, 3})
      for (const double bad : {0.0, std::nan(""), std::numeric_limits<double>::infinity()})
        for (const bool counted : {false, true}) {
          SCOPED_TRACE(::testing::Message() << n << " elements from " << first << " bad " << bad);
          Twins twins;
          Twin& x = twins.make("x", Dtype::f32, 1, n, {.padding = first, .first_col = first}).randomise(1, 1e3);
          if (bad != 0.0) x.set(0, n / 2, bad);
          const Twin& result = twins.make("result", Dtype::f64, 1, 2).fill(5);
          twins.check([&](const Context& ctx) {
            const Tensor part = tensor_over(x.tensor(ctx).data, Dtype::f32, 1, n);
            ops::squared_norm(ctx, {part, {{0, n, 3, counted}}, result.tensor(ctx)});
          });
        }
}

// Runs of all lengths and alignments in one call: more of them than blocks, and more blocks than one of them has work.
TEST(GpuSquaredNorm, RunsOfAShard) {
  TRAINER_REQUIRE_GPU();
  for (const std::int64_t scale : {1, 40, 5000}) {
    Twins twins;
    Twin& x = twins.make("x", Dtype::f32, 1, 4000 * scale).randomise(1, 1e3);
    x.set(0, 1001 * scale, std::nan(""));                             // in no run
    x.set(0, 3500 * scale, std::numeric_limits<double>::infinity());  // in the last one
    const Twin& result = twins.make("result", Dtype::f64, 1, 2).fill(50);
    twins.check([&](const Context& ctx) {
      ops::squared_norm(ctx, {x.tensor(ctx),
                              {{1, 3, 9},
                               {5, 1000 * scale - 10, 8},
                               {1001 * scale + 1, 2, 7, false},
                               {1001 * scale + 3, 0, 6},
                               {2000 * scale, 1000 * scale + 1, 5},
                               {3000 * scale + 3, 1000 * scale - 3, 12, scale > 1}},
                              result.tensor(ctx)});
    });
  }
}

TEST(GpuPrepareUpdate, DecidesAsTheCpu) {
  TRAINER_REQUIRE_GPU();
  const double infinity = std::numeric_limits<double>::infinity();
  for (const double norm : {0.0, 0.3, 1e5, std::nan(""), infinity})
    for (const double bad : {infinity, 4.0})
      for (const double tokens : {0.0, 1000.0})
        for (const double loss_scale : {1.0, 65536.0})
          for (const bool scaling : {false, true}) {
            UpdateState initial;
            initial.loss_scale = loss_scale;
            initial.growth_tracker = 1;
            initial.updates = 10;
            Twins twins;
            const Twin& state = twins.make_state(initial);
            Twin& norms = twins.make("norm", Dtype::f64, 1, 2);
            norms.set(0, 0, norm).set(0, 1, bad);
            Twin& sums = twins.make("sums", Dtype::f64, 1, 3);
            sums.set(0, 0, 3000).set(0, 1, 2).set(0, 2, tokens);
            twins.check([&](const Context& ctx) {
              ops::prepare_update(ctx, {.state = state_of(state, ctx),
                                        .norm = norms.tensor(ctx),
                                        .sums = sums.tensor(ctx),
                                        .grad_scale = 1.0 / 700,
                                        .clip_grad_norm = 1.0,
                                        .scaling = scaling,
                                        .scale = {.growth_interval = 2}});
            });
          }
}

/// A parameter of n elements in each form, whose tensors start `first` elements into their buffers.
struct Parameter {
  Parameter(Twins& twins, Dtype dtype, Dtype moments, bool has_m, bool has_v, std::int64_t n, std::int64_t first)
      : n_(n) {
    const Layout layout{.padding = first, .first_col = first};
    weight = &twins.make("weight", dtype, 1, n, layout).randomise(1, 0.02).exact();
    if (dtype == Dtype::bf16) {
      low = &twins.make("low", Dtype::u16, 1, n, layout);
      for (std::int64_t i = 0; i < n; ++i) low->set(0, i, static_cast<double>(i * 2654435761 % 65536));
    }
    if (dtype == Dtype::f16) master = &twins.make("master", Dtype::f32, 1, n, layout).randomise(2, 0.02).exact();
    grad = &twins.make("grad", Dtype::f32, 1, n, layout).randomise(3, 10.0);
    if (has_m) m = &twins.make("m", moments, 1, n, layout).randomise(4, 1e-3).exact();
    if (has_v) {
      v = &twins.make("v", moments, 1, n, layout).exact();
      for (std::int64_t i = 0; i < n; ++i) v->set(0, i, std::pow(static_cast<double>(i % 97) * 1e-3, 2));
    }
  }
  ops::ShardTensors tensors(const Context& ctx) const {
    const auto flat = [&](const Twin* twin) {
      if (twin == nullptr) return Tensor{};
      const Tensor t = twin->tensor(ctx);
      return tensor_over(t.data, t.dtype, 1, n_);
    };
    return {flat(weight), flat(low), flat(master), flat(grad), flat(m), flat(v)};
  }
  Twin *weight = nullptr, *low = nullptr, *master = nullptr, *grad = nullptr, *m = nullptr, *v = nullptr;

 private:
  std::int64_t n_;
};

template <class Body>
void for_each_form(const Body& body) {
  for (const Dtype dtype : gpu_dtypes())
    for (const Dtype moments : {Dtype::f32, Dtype::bf16})
      for (const std::int64_t n : kSizes)
        for (const std::int64_t first : {0, 8, 3}) {
          SCOPED_TRACE(::testing::Message() << dtype_name(dtype) << " moments " << dtype_name(moments) << " elements "
                                            << n << " from " << first);
          body(dtype, moments, n, first);
        }
}

UpdateState state_at(std::int64_t updates, bool skipped) {
  UpdateState state;
  state.updates = updates;
  state.grad_factor = 0.0123456789;
  state.skipped = skipped ? 1 : 0;
  return state;
}

TEST(GpuAdamW, BitsOfTheCpu) {
  TRAINER_REQUIRE_GPU();
  for_each_form([](Dtype dtype, Dtype moments, std::int64_t n, std::int64_t first) {
    for (const std::int64_t updates : {1, 37, 100000}) {
      Twins twins;
      const Parameter p(twins, dtype, moments, true, true, n, first);
      const Twin& state = twins.make_state(state_at(updates, updates == 37 && n == 1000));
      twins.check([&](const Context& ctx) {
        ops::adamw(ctx, {.shard = p.tensors(ctx),
                         .runs = {{.count = n, .weight_decay = 0.1, .rounding_key = 77, .first_index = 1000000007}},
                         .state = state_of(state, ctx),
                         .lr = 3e-4,
                         .beta1 = 0.9,
                         .beta2 = 0.95,
                         .eps = 1e-8});
      });
    }
  });
}

// Runs that start anywhere, are empty, or have rows with gaps between their global indices, in one call.
TEST(GpuAdamW, RunsOfAShardHaveTheBitsOfTheCpu) {
  TRAINER_REQUIRE_GPU();
  for (const Dtype dtype : gpu_dtypes())
    for (const Dtype moments : {Dtype::f32, Dtype::bf16})
      for (const std::int64_t first : {0, 3}) {
        SCOPED_TRACE(::testing::Message() << dtype_name(dtype) << " moments " << dtype_name(moments) << " " << first);
        constexpr std::int64_t kN = 200003;
        Twins twins;
        const Parameter p(twins, dtype, moments, true, true, kN, first);
        const Twin& state = twins.make_state(state_at(9, false));
        const auto run = [](std::int64_t begin, std::int64_t end, std::uint64_t key) {
          return ops::UpdateRun{.first = begin,
                                .count = end - begin,
                                .weight_decay = 0.1 * static_cast<double>(key),
                                .rounding_key = key,
                                .first_index = 5 * begin};
        };
        ops::UpdateRun odd = run(80000, 120000, 4), even = run(120001, 199999, 5);
        odd.row_gap = 14, odd.cols = 7, odd.first_col = 3;
        even.row_gap = 4096, even.cols = 64, even.first_col = 60;
        twins.check([&](const Context& ctx) {
          ops::adamw(ctx, {.shard = p.tensors(ctx),
                           .runs = {run(0, 3, 0), run(7, 7, 1), run(8, 4104, 2), run(4105, 80000, 3), odd, even},
                           .state = state_of(state, ctx),
                           .lr = 3e-4});
        });
      }
}

TEST(GpuSgd, BitsOfTheCpu) {
  TRAINER_REQUIRE_GPU();
  for_each_form([](Dtype dtype, Dtype moments, std::int64_t n, std::int64_t first) {
    for (const double momentum : {0.0, 0.9}) {
      Twins twins;
      const Parameter p(twins, dtype, moments, momentum != 0.0, false, n, first);
      const Twin& state = twins.make_state(state_at(5, false));
      twins.check([&](const Context& ctx) {
        ops::sgd(ctx, {.shard = p.tensors(ctx),
                       .runs = {{.count = n, .weight_decay = 0.01, .rounding_key = 77, .first_index = 4}},
                       .state = state_of(state, ctx),
                       .lr = 0.1,
                       .momentum = momentum,
                       .nesterov = n % 2 == 0});
      });
    }
  });
}

TEST(GpuMaster, ReadAndWrite) {
  TRAINER_REQUIRE_GPU();
  for (const Dtype dtype : gpu_dtypes())
    for (const Dtype values : {Dtype::f32, Dtype::f64})
      for (const std::int64_t n : kSizes)
        for (const std::int64_t first : {0, 3})
          for (const bool weight_only : {false, true}) {
            SCOPED_TRACE(::testing::Message()
                         << dtype_name(dtype) << " as " << dtype_name(values) << " elements " << n);
            Twins twins;
            const Parameter p(twins, dtype, Dtype::f32, false, false, n, first);
            const Twin& out = twins.make("out", values, 1, n).fill(7).exact();
            Twin& in = twins.make("in", values, 1, n).randomise(9, 0.02).exact();
            in.set(0, 0, std::nan("")).set(0, n / 2, 1e-42).set(0, n - 1, 3.4e38);
            twins.check([&](const Context& ctx) {
              ops::ShardTensors shard = p.tensors(ctx);
              ops::master_read(ctx, {.shard = shard, .out = out.tensor(ctx)});
              if (weight_only) shard.low = shard.master = {};
              ops::master_write(ctx, {.in = in.tensor(ctx), .shard = shard});
            });
          }
}

TEST(GpuMaster, EverySplitPatternComesBack) {
  TRAINER_REQUIRE_GPU();
  // All upper halves with a few lower ones: written and read on the card, equal to what went in (NaN made canonical).
  const Context& ctx = gpu_context();
  const std::int64_t n = 65536;
  for (const std::uint32_t lower : {0u, 1u, 0x7fffu, 0x8000u, 0xffffu}) {
    std::vector<std::uint32_t> in(n), out(n);
    for (std::uint32_t upper = 0; upper < n; ++upper) in[upper] = upper << 16 | lower;
    const auto memory = allocate(ctx.device, n * 12, "a test");
    auto* base = static_cast<char*>(memory.get());
    const Tensor values = tensor_over(base, Dtype::f32, 1, n);
    ops::ShardTensors shard;
    shard.weight = tensor_over(base + n * 4, Dtype::bf16, 1, n);
    shard.low = tensor_over(base + n * 6, Dtype::u16, 1, n);
    const Tensor read = tensor_over(base + n * 8, Dtype::f32, 1, n);
    copy_to_device(ctx, values.data, in.data(), n * 4);
    ops::master_write(ctx, {.in = values, .shard = shard});
    ops::master_read(ctx, {.shard = shard, .out = read});
    copy_to_host(ctx, out.data(), read.data, n * 4);
    synchronize(ctx);
    for (std::uint32_t upper = 0; upper < n; ++upper) {
      const bool nan = (in[upper] & 0x7fffffffu) > 0x7f800000u;
      ASSERT_EQ(out[upper], nan ? (in[upper] & 0x80000000u) | 0x7fc00000u : in[upper]);
    }
  }
}

}  // namespace
}  // namespace trainer::testing
