// The attention kernels of the card against the CPU op, and against each other. Stated error: norm of the difference
// over the norm of the CPU's result, at most 2^-8 forward and 2^-7 backward for bf16, an eighth of that for fp16. The
// kernels round the probabilities and their gradients to the type of q between two products, which the CPU does not.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <tuple>

#include "kernels/cuda/attention_cudnn.h"
#include "kernels/cuda/attention_flash.h"
#include "kernels/cuda/attention_plain.h"
#include "tests/gpu/attention_args.h"
#include "tests/gpu/attention_volta.h"
#include "tests/gpu/twin.h"

namespace trainer::testing {
namespace {

using Lengths = std::vector<std::int64_t>;

struct Case {
  std::int64_t heads, kv_heads;
  Lengths queries;
  Lengths keys = {};  // empty: as many as queries
  std::int64_t window = 0;
  double dropout = 0.0;
};

/// Odd lengths, ragged batches, more keys than queries, windows, groups of 1 to 8, dropout.
std::vector<Case> cases() {
  return {{1, 1, {1}},
          {2, 2, {17}},
          {8, 1, {63}},
          {2, 1, {64, 64}},
          {3, 1, {65}},
          {4, 2, {200, 200}},
          {6, 2, {3, 200, 0, 17, 130, 1, 64}},
          {2, 1, {5, 70, 64}, {40, 200, 64}},
          {1, 1, {1, 129}, {300, 129}},
          {2, 2, {200}, {}, 1},
          {4, 1, {200, 65}, {}, 9},
          {2, 1, {200}, {}, 64},
          {2, 1, {70, 30}, {257, 30}, 100},
          {8, 1, {200, 33}, {}, 0, 0.1},
          {4, 2, {65, 3, 130}, {67, 200, 131}, 50, 0.3}};
}

/// Documents of a micro-batch: many of 1 to 7 tokens, one that fills a window, one among many short ones, boundaries at
/// the edges of tiles and windows and beside them.
std::vector<Case> documents() {
  Lengths many(3000), mixed(400, 3), after(300, 1);
  for (std::size_t i = 0; i < many.size(); ++i) many[i] = 1 + static_cast<std::int64_t>(i * i % 7);
  mixed[100] = 2048;
  mixed[399] = 700;
  after.insert(after.begin(), 1024);
  return {{2, 1, many},  {2, 2, {2048}},
          {4, 2, mixed}, {2, 1, mixed, {}, 100},
          {2, 1, after}, {2, 1, {64, 64, 128, 256, 1, 127, 512, 255, 257, 63, 65, 0, 384, 128}}};
}

/// Few documents: of one token, empty, of a multiple of nothing, at and beside the edges of cuDNN's blocks; shared
/// heads, windows. The last ones have 400 tokens each, so that calls one after the other share plans.
std::vector<Case> few_documents() {
  return {{8, 2, {1, 517, 63, 1, 1, 129, 0, 300}},
          {4, 4, {1, 1, 3}},
          {6, 2, {1000, 7, 200, 65, 128, 1, 127}, {}, 64},
          {4, 1, {33, 500, 257}, {}, 1},
          {4, 2, {399, 1}},
          {4, 2, {300, 97, 2, 1}},
          {4, 2, {200, 150, 50}},
          {4, 2, {1, 1, 398}},
          {4, 2, {120, 80, 100, 60, 40}}};
}

/// The tensors of a case on both machines; q, k and v lie in longer rows, as in a fused buffer.
class Problem {
 public:
  Problem(const Case& c, Dtype dtype, std::int64_t head_dim, Layout layout = {24, 8})
      : q_starts_(starts("q_starts", c.queries)), kv_starts_(c.keys.empty() ? q_starts_ : starts("kv_starts", c.keys)) {
    shape = {.heads = c.heads, .kv_heads = c.kv_heads, .head_dim = head_dim};
    shape.scale = 1 / std::sqrt(static_cast<double>(head_dim));
    shape.window = c.window;
    shape.max_seq = *std::max_element(c.queries.begin(), c.queries.end());
    shape.dropout = {.p = c.dropout, .key = 0x1234567890ABCDEF};
    shape.first_sequence = 1000000007;
    shape.first_head = 5;
    shape.total_heads = c.heads + 9;
    const Lengths keys = keys_of(c);
    const std::int64_t n = std::accumulate(c.queries.begin(), c.queries.end(), std::int64_t{0});
    const std::int64_t m = std::accumulate(keys.begin(), keys.end(), std::int64_t{0});
    const std::int64_t width = c.heads * head_dim, kv_width = c.kv_heads * head_dim;
    q = &twins.make("q", dtype, n, width, layout).randomise(1);
    k = &twins.make("k", dtype, m, kv_width, layout).randomise(2);
    v = &twins.make("v", dtype, m, kv_width, layout).randomise(3);
    dout = &twins.make("dout", dtype, n, width).randomise(4);
    out = &twins.make("out", dtype, n, width).loosen(4).fill(7);
    lse = &twins.make("lse", Dtype::f32, 1, n * c.heads).loosen(4).fill(7);
    // One element of out that rounds the other way on the card moves the gradients of all scores of its row: rare, and
    // the stated error of the whole tensor bounds it.
    dq = &twins.make("dq", dtype, n, width, layout).loosen(24).fill(7);
    dk = &twins.make("dk", dtype, m, kv_width, layout).loosen(24).fill(7);
    dv = &twins.make("dv", dtype, m, kv_width, layout).loosen(8).fill(7);
    // Where each query sees one key the softmax does not move: dq and dk are rounding errors.
    dq->at_least(0.5);
    dk->at_least(0.5);
    bits_ = dtype == Dtype::bf16 ? 8 : dtype == Dtype::f16 ? 11 : 17;
  }

  ops::AttentionForwardArgs forward(const Context& ctx) const { return forward_of(backward(ctx)); }
  ops::AttentionBackwardArgs backward(const Context& ctx) const {
    return {.shape = shape,
            .q = q->tensor(ctx),
            .k = k->tensor(ctx),
            .v = v->tensor(ctx),
            .q_starts = q_starts_.tensor(ctx),
            .kv_starts = kv_starts_.tensor(ctx),
            .out = out->tensor(ctx),
            .lse = lse->tensor(ctx),
            .dout = dout->tensor(ctx),
            .dq = dq->tensor(ctx),
            .dk = dk->tensor(ctx),
            .dv = dv->tensor(ctx)};
  }

  /// Both directions through the dispatch, with `choice`, twice on the card and once on the CPU.
  void check(AttentionChoice choice) { check(choice, choice, /*deterministic=*/true); }
  /// The same, each direction with its own choice. Gradients need the same bits twice only when `deterministic`.
  void check(AttentionChoice forward_choice, AttentionChoice backward_choice, bool deterministic) {
    for (Twin* gradient : {dq, dk, dv}) gradient->may_vary(!deterministic);
    twins.check([&](Context ctx) {
      ctx.deterministic = deterministic;
      ctx.attention = forward_choice;
      ops::attention_forward(ctx, forward(ctx));
      ctx.attention = backward_choice;
      ops::attention_backward(ctx, backward(ctx));
    });
    expect_stated_error();
  }

  /// The same with the units of Volta.
  void check_volta() {
    twins.check([&](const Context& ctx) {
      if (ctx.device.kind == DeviceKind::cpu) {
        ops::attention_forward(ctx, forward(ctx));
        ops::attention_backward(ctx, backward(ctx));
      } else {
        volta_attention_forward(ctx, forward(ctx));
        volta_attention_backward(ctx, backward(ctx));
      }
    });
    expect_stated_error();
  }

  void expect_stated_error() const {
    EXPECT_LE(relative_error(*out), std::ldexp(1.0, -bits_));
    for (const Twin* gradient : {dq, dk, dv})
      EXPECT_LE(relative_error(*gradient), std::ldexp(2.0, -bits_)) << gradient->name();
  }

  ops::AttentionShape shape;
  Twins twins;
  Twin *q, *k, *v, *dout, *out, *lse, *dq, *dk, *dv;

 private:
  static Lengths keys_of(const Case& c) { return c.keys.empty() ? c.queries : c.keys; }
  const Twin& starts(const char* name, const Lengths& lengths) {
    Twin& twin = twins.make(name, Dtype::i32, 1, static_cast<std::int64_t>(lengths.size()) + 1);
    double sum = 0;
    for (std::size_t s = 0; s < lengths.size(); ++s)
      twin.set(0, static_cast<std::int64_t>(s) + 1, sum += static_cast<double>(lengths[s]));
    return twin;
  }
  /// Gradients that are zero but for rounding (a single key: the softmax does not move) are measured against 1.
  static double relative_error(const Twin& twin) {
    double difference = 0, size = 0;
    for (std::int64_t r = 0; r < twin.rows(); ++r)
      for (std::int64_t c = 0; c < twin.cols(); ++c) {
        difference += std::pow(twin.on_gpu(r, c) - twin.on_cpu(r, c), 2);
        size += std::pow(twin.on_cpu(r, c), 2);
      }
    return std::sqrt(difference) / std::max(1.0, std::sqrt(size));
  }

  const Twin& q_starts_;
  const Twin& kv_starts_;
  int bits_;
};

std::string text_of(const Lengths& lengths) {
  constexpr std::size_t kShown = 16;
  const auto shown = static_cast<std::ptrdiff_t>(std::min(kShown, lengths.size()));
  return fmt::format(" {}{}", fmt::join(lengths.begin(), lengths.begin() + shown, " "),
                     lengths.size() > kShown ? fmt::format(" ... ({} in all)", lengths.size()) : "");
}
::testing::Message name_of(const Case& c, Dtype dtype, std::int64_t head_dim) {
  return ::testing::Message() << dtype_name(dtype) << " heads " << c.heads << "/" << c.kv_heads << " of " << head_dim
                              << ", queries" << text_of(c.queries) << ", keys" << text_of(c.keys) << ", window "
                              << c.window << ", dropout " << c.dropout;
}

TEST(GpuAttention, FlashIsTheCpuOp) {
  TRAINER_REQUIRE_GPU();
  for (const Dtype dtype : {Dtype::bf16, Dtype::f16})
    for (const std::int64_t head_dim : {64, 80, 96, 128})
      for (const Case& c : cases()) {
        SCOPED_TRACE(name_of(c, dtype, head_dim));
        Problem problem(c, dtype, head_dim);
        EXPECT_EQ(ops::cuda::flash_attention_fits(gpu_context(), problem.forward(gpu_context())),
                  dtype == Dtype::f16 || device_properties({DeviceKind::cuda, 0}).sm >= 80);
        problem.check(AttentionChoice::builtin);
      }
}

TEST(GpuAttention, VoltaUnitsAreTheCpuOp) {
  TRAINER_REQUIRE_GPU();
  for (const std::int64_t head_dim : {64, 128})
    for (const Case& c : cases()) {
      SCOPED_TRACE(name_of(c, Dtype::f16, head_dim));
      Problem(c, Dtype::f16, head_dim).check_volta();
    }
}

TEST(GpuAttention, DocumentsAreTheCpuOp) {
  TRAINER_REQUIRE_GPU();
  for (const Case& c : documents()) {
    SCOPED_TRACE(::testing::Message() << c.queries.size() << " documents, the first of " << c.queries.front()
                                      << " tokens, window " << c.window);
    for (const std::int64_t head_dim : {64, 128}) {
      Problem(c, Dtype::bf16, head_dim).check(AttentionChoice::builtin);
      Problem(c, Dtype::bf16, head_dim).check(AttentionChoice::automatic);
    }
    Problem(c, Dtype::f16, 64).check_volta();
    Problem(c, Dtype::f32, 40).check(AttentionChoice::builtin);
  }
}

TEST(GpuAttention, CudnnServesDocuments) {
  TRAINER_REQUIRE_GPU();
  Context gpu = gpu_context();
  gpu.deterministic = false;
  constexpr AttentionChoice kCudnn = AttentionChoice::cudnn, kBuiltin = AttentionChoice::builtin;
  for (const Dtype dtype : {Dtype::bf16, Dtype::f16})
    for (const std::int64_t head_dim : {64, 96, 128}) {
      std::vector<Case> cases = few_documents();
      if (const std::vector<Case> more = documents(); dtype == Dtype::bf16 && head_dim == 128)
        cases.insert(cases.end(), more.begin(), more.end());
      for (const Case& c : cases) {
        SCOPED_TRACE(name_of(c, dtype, head_dim));
        Problem problem(c, dtype, head_dim);
        const auto args = problem.forward(gpu);
        if (!ops::cuda::cudnn_attention_fits(gpu, args.shape, args.q, args.k, args.q_starts, args.kv_starts))
          GTEST_SKIP() << "no cuDNN attention for documents on this card or in this build";
        EXPECT_TRUE(ops::cuda::cudnn_attention_serves(gpu, args));
        EXPECT_TRUE(ops::cuda::cudnn_attention_serves(gpu, problem.backward(gpu)));
        problem.check(kCudnn, kCudnn, /*deterministic=*/false);
      }
    }
  // One layer by both: each reads the other's lse.
  const Case shared{4, 2, {300, 97, 2, 1}};
  SCOPED_TRACE(name_of(shared, Dtype::bf16, 128));
  Problem(shared, Dtype::bf16, 128).check(kCudnn, kBuiltin, /*deterministic=*/false);
  Problem(shared, Dtype::bf16, 128).check(kBuiltin, kCudnn, /*deterministic=*/false);
}

TEST(GpuAttention, PlainIsTheCpuOp) {
  TRAINER_REQUIRE_GPU();
  for (const Dtype dtype : gpu_dtypes())
    for (const Layout& layout : layouts())
      for (const Case& c : cases()) {
        const std::int64_t head_dim = 40;  // no flash kernel has it, and cuDNN none for float32
        SCOPED_TRACE(name_of(c, dtype, head_dim));
        Problem(c, dtype, head_dim, layout).check(AttentionChoice::builtin);
      }
}

TEST(GpuAttention, AutomaticIsTheCpuOp) {
  TRAINER_REQUIRE_GPU();
  for (const Dtype dtype : {Dtype::bf16, Dtype::f16})
    for (const std::int64_t head_dim : {64, 128})
      for (const Case& c : cases()) {
        SCOPED_TRACE(name_of(c, dtype, head_dim));
        Problem(c, dtype, head_dim).check(AttentionChoice::automatic);
      }
}

/// With v the identity, out holds the probabilities; with dout the identity, dv holds them turned over.
TEST(GpuAttention, DropoutDropsWhatTheCpuDrops) {
  TRAINER_REQUIRE_GPU();
  for (const std::int64_t length : {64, 63, 61, 33})
    for (const std::int64_t more_keys : {0, 1})
      for (const std::int64_t head_dim : {64, 40}) {
        if (length + more_keys > head_dim && head_dim == 64) continue;
        SCOPED_TRACE(::testing::Message() << length << " + " << more_keys << " keys, heads of " << head_dim);
        const std::int64_t queries = std::min(length, head_dim - more_keys);
        const Case c{3, 1, {queries, queries}, {queries + more_keys, queries + more_keys}, 0, 0.3};
        Problem problem(c, Dtype::f16, head_dim);
        for (Twin* twin : {problem.v, problem.dout}) {
          twin->fill(0);
          const std::int64_t period = twin->rows() / 2;
          for (std::int64_t r = 0; r < twin->rows(); ++r)
            for (std::int64_t h = 0; h < twin->cols() / head_dim; ++h) twin->set(r, h * head_dim + r % period, 1);
        }
        problem.check(AttentionChoice::builtin);
        std::int64_t dropped = 0, visible = 0;
        for (std::int64_t r = 0; r < problem.out->rows(); ++r)
          for (std::int64_t x = 0; x < problem.out->cols(); ++x) {
            const std::int64_t key = x % head_dim, query = r % queries;
            ASSERT_EQ(problem.out->on_gpu(r, x) == 0, problem.out->on_cpu(r, x) == 0) << "out " << r << ", " << x;
            if (key > query + more_keys) continue;
            ++visible;
            dropped += problem.out->on_gpu(r, x) == 0 ? 1 : 0;
          }
        const double share = static_cast<double>(dropped) / static_cast<double>(visible);
        EXPECT_NEAR(share, 0.3, 5 * std::sqrt(0.3 * 0.7 / static_cast<double>(visible)));
      }
}

/// One query head for each key/value head, so that dv holds probabilities and not sums of them.
TEST(GpuAttention, BackwardDropsWhatForwardDrops) {
  TRAINER_REQUIRE_GPU();
  for (const std::int64_t length : {64, 61}) {
    SCOPED_TRACE(length);
    constexpr std::int64_t kHeadDim = 64;
    Problem problem({2, 2, {length}, {}, 0, 0.3}, Dtype::f16, kHeadDim);
    problem.dout->fill(0);
    for (std::int64_t r = 0; r < length; ++r)
      for (std::int64_t h = 0; h < 2; ++h) problem.dout->set(r, h * kHeadDim + r, 1);
    problem.check(AttentionChoice::builtin);
    for (std::int64_t key = 0; key < length; ++key)
      for (std::int64_t x = 0; x < 2 * kHeadDim; ++x)
        ASSERT_EQ(problem.dv->on_gpu(key, x) == 0, problem.dv->on_cpu(key, x) == 0) << "dv " << key << ", " << x;
  }
}

TEST(GpuAttention, CudnnFlashAndPlainAgree) {
  TRAINER_REQUIRE_GPU();
  const Context& gpu = gpu_context();
  for (const std::int64_t head_dim : {64, 128})
    for (const std::int64_t window : {0, 1, 64, 100})
      for (const Lengths& lengths : {Lengths{384, 384}, Lengths{333}}) {
        const Case c{4, 2, lengths, {}, window};
        SCOPED_TRACE(name_of(c, Dtype::bf16, head_dim));
        Problem problem(c, Dtype::bf16, head_dim);
        const auto args = problem.forward(gpu);
        if (!ops::cuda::cudnn_attention_fits(gpu, args.shape, args.q, args.k, args.q_starts, args.kv_starts))
          GTEST_SKIP() << "no cuDNN attention on this card or in this build";
        problem.check(AttentionChoice::cudnn);
        problem.check(AttentionChoice::builtin);
        problem.twins.check([&](const Context& ctx) {
          if (ctx.device.kind == DeviceKind::cpu) {
            ops::attention_forward(ctx, problem.forward(ctx));
            ops::attention_backward(ctx, problem.backward(ctx));
          } else {
            ops::cuda::plain_attention_forward(ctx, problem.forward(ctx));
            ops::cuda::plain_attention_backward(ctx, problem.backward(ctx));
          }
        });
        problem.expect_stated_error();
      }
}

/// float32, and documents whose gradients are to have the same bits in every run.
TEST(GpuAttention, CudnnIsRefusedWhereItCannot) {
  TRAINER_REQUIRE_GPU();
  Context ctx = gpu_context();
  ctx.attention = AttentionChoice::cudnn;
  for (const auto& [c, dtype, part] : {std::tuple{Case{2, 1, {20}}, Dtype::f32, "float32"},
                                       std::tuple{Case{2, 1, {20, 30}}, Dtype::bf16, "deterministic false"}}) {
    const Problem problem(c, dtype, 64);
    try {
      ops::attention_forward(ctx, problem.forward(ctx));
      FAIL() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::config);
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace trainer::testing
