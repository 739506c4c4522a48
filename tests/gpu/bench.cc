// Time of each op at the shapes of a 3B Llama (8192 tokens) against the time that moving its bytes takes at the card's
// copy rate. Only with TRAINER_GPU_BENCH=1. Buffers rotate, so that the cache does not serve a second run.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <vector>

#include "core/runtime/divide.h"
#include "core/runtime/median.h"
#include "core/runtime/rng.h"
#include "tests/gpu/twin.h"

namespace trainer::testing {
namespace {

constexpr std::int64_t kTokens = 8192, kHidden = 3072, kFeedForward = 8192, kVocabulary = 128256;
constexpr std::int64_t kHeads = 24, kKvHeads = 8, kHeadDim = 128;
constexpr int kSets = 3;  // of buffers

/// Memory of one set, given out in pieces; filled with small random numbers of type bf16 (as float32: small, too).
class Pool {
 public:
  explicit Pool(std::int64_t bytes) : memory_(allocate(gpu_context().device, bytes, "a benchmark")), bytes_(bytes) {
    constexpr std::int64_t kPattern = (std::int64_t{1} << 20) - 16;
    std::vector<Bfloat16> pattern(kPattern);
    for (std::int64_t i = 0; i < kPattern; ++i)
      pattern[static_cast<std::size_t>(i)] = Bfloat16(static_cast<float>(normal_at(3, static_cast<std::uint64_t>(i))));
    copy_to_device(gpu_context(), memory_.get(), pattern.data(), std::min(bytes, kPattern * 2));
    for (std::int64_t done = kPattern * 2; done < bytes; done *= 2)
      copy(gpu_context(), static_cast<char*>(memory_.get()) + done, memory_.get(), std::min(done, bytes - done));
    synchronize(gpu_context());
  }
  Tensor take(Dtype dtype, std::int64_t rows, std::int64_t cols) {
    const Tensor t = tensor_over(static_cast<char*>(memory_.get()) + used_, dtype, rows, cols);
    used_ += round_up(t.bytes(), kMemoryAlignment);
    TRAINER_CHECK(used_ <= bytes_, "a benchmark needs {} bytes", used_);
    return t;
  }
  void clear() { used_ = 0; }

 private:
  std::shared_ptr<void> memory_;
  std::int64_t bytes_, used_ = 0;
};

class Bench {
 public:
  Bench() {
    for (int s = 0; s < kSets; ++s) pools_.emplace_back(std::int64_t{8} << 30);
    measure_copy();
  }

  /// `make(pool)` takes tensors and returns the call. Prints the median of the calls.
  template <class Make>
  void time(const char* name, double bytes, const Make& make) {
    std::vector<std::function<void()>> calls;
    for (Pool& pool : pools_) {
      pool.clear();
      calls.emplace_back(make(pool));
    }
    const double ms = median_ms(calls);
    EXPECT_GT(ms, 0.0) << name;
    EXPECT_LT(bytes / (ms * 1e-3), kMostCopyRates * copy_rate_) << name << ": too fast to have been computed";
    fmt::print("{:<34}{:>10.1f} MB{:>10.1f} us{:>10.1f} us floor{:>9.0f} GB/s{:>7.1f} %\n", name, bytes / 1e6, ms * 1e3,
               bytes / copy_rate_ * 1e6, bytes / ms / 1e6, 100 * bytes / (ms * 1e-3) / copy_rate_);
  }

 private:
  static constexpr double kMostCopyRates = 4;  // of what is read from the cache

  void measure_copy() {
    std::vector<std::function<void()>> calls;
    const std::int64_t bytes = std::int64_t{2} << 30;
    for (Pool& pool : pools_) {
      pool.clear();
      const Tensor from = pool.take(Dtype::u8, 1, bytes), to = pool.take(Dtype::u8, 1, bytes);
      calls.emplace_back([=] { copy(gpu_context(), to.data, from.data, bytes); });
    }
    copy_rate_ = 2.0 * static_cast<double>(bytes) / (median_ms(calls) * 1e-3);
    EXPECT_GT(copy_rate_, 1e10);
    fmt::print("copy rate {:.2f} TB/s\n", copy_rate_ / 1e12);
  }

  static double median_ms(const std::vector<std::function<void()>>& calls) {
    constexpr int kRuns = 21;
    const Context& ctx = gpu_context();
    for (const auto& call : calls) call();
    std::vector<Event> marks;
    for (int i = 0; i <= kRuns; ++i) marks.emplace_back(ctx.device);
    synchronize(ctx);
    // The host must be ahead of the card: something long stands before the first mark.
    calls[0]();
    calls[1]();
    for (int i = 0; i <= kRuns; ++i) {
      marks[static_cast<std::size_t>(i)].record(ctx);
      if (i < kRuns) calls[static_cast<std::size_t>(i) % calls.size()]();
    }
    synchronize(ctx);
    std::vector<double> times;
    for (std::size_t i = 0; i < kRuns; ++i) times.push_back(marks[i + 1].milliseconds_since(marks[i]));
    return median(times);
  }

  std::vector<Pool> pools_;
  double copy_rate_ = 0;
};

double mega(std::int64_t elements, std::int64_t bytes_each) {
  return static_cast<double>(elements * bytes_each);
}

void time_rows(Bench& bench) {
  const Context& ctx = gpu_context();
  const Dtype t = Dtype::bf16;
  const std::int64_t nc = kTokens * kHidden;
  for (const auto& [name, kind, tokens, width] :
       {std::tuple{"rmsnorm 16384x2048", NormKind::rmsnorm, std::int64_t{16384}, std::int64_t{2048}},
        std::tuple{"rmsnorm 8192x3072", NormKind::rmsnorm, kTokens, kHidden},
        std::tuple{"rmsnorm 8192x5120", NormKind::rmsnorm, kTokens, std::int64_t{5120}},
        std::tuple{"layernorm 65536x768", NormKind::layernorm, std::int64_t{65536}, std::int64_t{768}},
        std::tuple{"layernorm 16384x1600", NormKind::layernorm, std::int64_t{16384}, std::int64_t{1600}}}) {
    const bool ln = kind == NormKind::layernorm;
    bench.time(fmt::format("add + {}", name).c_str(), mega(tokens * width, 8), [&](Pool& p) {
      const ops::AddNormForwardArgs args{.kind = kind,
                                         .x = p.take(t, tokens, width),
                                         .branch = p.take(t, tokens, width),
                                         .weight = p.take(t, width, 1),
                                         .bias = ln ? p.take(t, width, 1) : Tensor{},
                                         .sum = p.take(t, tokens, width),
                                         .out = p.take(t, tokens, width),
                                         .mean = ln ? p.take(Dtype::f32, 1, tokens) : Tensor{},
                                         .rstd = p.take(Dtype::f32, 1, tokens)};
      return [&ctx, args] { ops::add_norm_forward(ctx, args); };
    });
    bench.time(fmt::format("backward {}", name).c_str(), mega(tokens * width, 8), [&](Pool& p) {
      const ops::NormBackwardArgs args{.kind = kind,
                                       .dout = p.take(t, tokens, width),
                                       .sum = p.take(t, tokens, width),
                                       .weight = p.take(t, width, 1),
                                       .mean = ln ? p.take(Dtype::f32, 1, tokens) : Tensor{},
                                       .rstd = p.take(Dtype::f32, 1, tokens),
                                       .dresidual = p.take(t, tokens, width),
                                       .dx = p.take(t, tokens, width),
                                       .dweight = p.take(Dtype::f32, width, 1),
                                       .dbias = ln ? p.take(Dtype::f32, width, 1) : Tensor{}};
      return [&ctx, args] { ops::norm_backward(ctx, args); };
    });
  }
  bench.time("add", mega(nc, 6), [&](Pool& p) {
    const ops::AddArgs args{p.take(t, kTokens, kHidden), p.take(t, kTokens, kHidden), p.take(t, kTokens, kHidden)};
    return [&ctx, args] { ops::add(ctx, args); };
  });
  bench.time("add_bias", mega(nc, 4), [&](Pool& p) {
    const ops::AddBiasArgs args{p.take(t, kTokens, kHidden), p.take(t, kHidden, 1)};
    return [&ctx, args] { ops::add_bias(ctx, args); };
  });
  bench.time("bias_backward", mega(nc, 2), [&](Pool& p) {
    const ops::BiasBackwardArgs args{p.take(t, kTokens, kHidden), p.take(Dtype::f32, kHidden, 1)};
    return [&ctx, args] { ops::bias_backward(ctx, args); };
  });
  bench.time("dropout", mega(nc, 4), [&](Pool& p) {
    const ops::DropoutArgs args{p.take(t, kTokens, kHidden), p.take(t, kTokens, kHidden), {0.1, 7}};
    return [&ctx, args] { ops::dropout(ctx, args); };
  });
  bench.time("cast float32 -> bf16", mega(4 * nc, 6), [&](Pool& p) {
    const ops::CastArgs args{p.take(Dtype::f32, 4 * kTokens, kHidden), p.take(t, 4 * kTokens, kHidden)};
    return [&ctx, args] { ops::cast(ctx, args); };
  });
  bench.time("fill float32", mega(8 * nc, 4), [&](Pool& p) {
    const ops::FillArgs args{p.take(Dtype::f32, 8 * kTokens, kHidden), 0.0};
    return [&ctx, args] { ops::fill(ctx, args); };
  });
}

void time_activations(Bench& bench) {
  const Context& ctx = gpu_context();
  const Dtype t = Dtype::bf16;
  for (const auto& [name, kind] : {std::pair{"gelu", Activation::gelu}, std::pair{"gelu_tanh", Activation::gelu_tanh},
                                   std::pair{"swiglu", Activation::swiglu}}) {
    const std::int64_t width = kind == Activation::swiglu ? 2 * kFeedForward : kFeedForward;
    bench.time(fmt::format("{} forward", name).c_str(), mega(kTokens * (width + kFeedForward), 2), [&](Pool& p) {
      const ops::ActivationForwardArgs args{kind, p.take(t, kTokens, width), p.take(t, kTokens, kFeedForward)};
      return [&ctx, args] { ops::activation_forward(ctx, args); };
    });
    bench.time(fmt::format("{} backward", name).c_str(), mega(kTokens * (2 * width + kFeedForward), 2), [&](Pool& p) {
      const ops::ActivationBackwardArgs args{kind, p.take(t, kTokens, width), p.take(t, kTokens, kFeedForward),
                                             p.take(t, kTokens, width)};
      return [&ctx, args] { ops::activation_backward(ctx, args); };
    });
  }
}

/// A view of q (and k) in the qkv buffer of a layer.
Tensor take_heads(Pool& p, std::int64_t heads) {
  return p.take(Dtype::bf16, kTokens, (kHeads + 2 * kKvHeads) * kHeadDim).col_range(0, heads * kHeadDim);
}

Tensor take_positions(Pool& p) {
  const Tensor positions = p.take(Dtype::i32, 1, kTokens);
  std::vector<std::int32_t> host(kTokens);
  for (std::int64_t n = 0; n < kTokens; ++n) host[static_cast<std::size_t>(n)] = static_cast<std::int32_t>(n % 4096);
  copy_to_device(gpu_context(), positions.data, host.data(), positions.bytes());
  synchronize(gpu_context());
  return positions;
}

void time_heads(Bench& bench) {
  const Context& ctx = gpu_context();
  for (const std::int64_t heads : {kHeads + kKvHeads, kHeads, kKvHeads}) {
    const double row_bytes = mega(kTokens * heads * kHeadDim, 2);
    bench.time(fmt::format("rope {} heads", heads).c_str(), 2 * row_bytes, [&](Pool& p) {
      const ops::RopeArgs args{take_heads(p, heads), take_positions(p), p.take(Dtype::f32, 4096, kHeadDim), heads};
      return [&ctx, args] { ops::rope(ctx, args); };
    });
    bench.time(fmt::format("head_norm {} heads", heads).c_str(), 2 * row_bytes, [&](Pool& p) {
      const ops::HeadNormForwardArgs args{1e-6,
                                          heads,
                                          take_heads(p, heads),
                                          p.take(Dtype::bf16, kHeadDim, 1),
                                          take_heads(p, heads),
                                          p.take(Dtype::f32, kTokens, heads)};
      return [&ctx, args] { ops::head_norm_forward(ctx, args); };
    });
    bench.time(fmt::format("head_norm backward {} heads", heads).c_str(), 3 * row_bytes, [&](Pool& p) {
      const ops::HeadNormBackwardArgs args{heads,
                                           take_heads(p, heads),
                                           take_heads(p, heads),
                                           p.take(Dtype::bf16, kHeadDim, 1),
                                           p.take(Dtype::f32, kTokens, heads),
                                           take_heads(p, heads),
                                           p.take(Dtype::f32, kHeadDim, 1)};
      return [&ctx, args] { ops::head_norm_backward(ctx, args); };
    });
  }
}

/// Ids as frequent as words: rank r with probability about 1 / r.
Tensor take_ids(Pool& p, std::int64_t& distinct) {
  const Tensor ids = p.take(Dtype::i32, 1, kTokens);
  std::vector<std::int32_t> host(kTokens);
  for (std::int64_t n = 0; n < kTokens; ++n) {
    const double u = static_cast<double>(uniform_at(17, static_cast<std::uint64_t>(n)));
    host[static_cast<std::size_t>(n)] = static_cast<std::int32_t>(std::pow(static_cast<double>(kVocabulary), u) - 1);
  }
  copy_to_device(gpu_context(), ids.data, host.data(), ids.bytes());
  synchronize(gpu_context());
  std::sort(host.begin(), host.end());
  distinct = std::unique(host.begin(), host.end()) - host.begin();
  return ids;
}

void time_vocabulary(Bench& bench) {
  const Context& ctx = gpu_context();
  const Dtype t = Dtype::bf16;
  std::int64_t distinct = 0;
  Pool ids_pool(1 << 20);
  const Tensor ids = take_ids(ids_pool, distinct), targets = take_positions(ids_pool);
  bench.time("embedding", mega(kTokens * kHidden, 4), [&](Pool& p) {
    const ops::EmbeddingForwardArgs args{ids, p.take(t, kVocabulary, kHidden), p.take(t, kTokens, kHidden)};
    return [&ctx, args] { ops::embedding_forward(ctx, args); };
  });
  for (const bool accumulate : {true, false}) {
    const double table = accumulate ? mega(distinct * kHidden, 8) : mega(kVocabulary * kHidden, 4);
    bench.time(accumulate ? "embedding backward, +=" : "embedding backward, =", mega(kTokens * kHidden, 2) + table,
               [&](Pool& p) {
                 const ops::EmbeddingBackwardArgs args{ids, p.take(t, kTokens, kHidden),
                                                       p.take(Dtype::f32, kVocabulary, kHidden), 0, accumulate};
                 return [&ctx, args] { ops::embedding_backward(ctx, args); };
               });
  }
  for (const std::int64_t vocabulary : {std::int64_t{50304}, kVocabulary, std::int64_t{151936}})
    bench.time(fmt::format("cross-entropy 8192 x {}", vocabulary).c_str(), mega(kTokens * vocabulary, 4), [&](Pool& p) {
      const ops::CrossEntropyArgs args{.logits = p.take(t, kTokens, vocabulary),
                                       .targets = targets,
                                       .sums = p.take(Dtype::f64, 1, 3),
                                       .valid_cols = vocabulary,
                                       .grad_scale = 1e-4};
      return [&ctx, args] { ops::cross_entropy(ctx, args); };
    });
  for (const std::int64_t rows : {std::int64_t{1024}, std::int64_t{2048}, kTokens}) {
    const auto stats_args = [&](Pool& p) {
      return ops::CrossEntropyStatsArgs{p.take(t, rows, kVocabulary), ids.col_range(0, rows),
                                        p.take(Dtype::f32, rows, 3), 0, kVocabulary};
    };
    bench.time(fmt::format("cross-entropy stats {}", rows).c_str(), mega(rows * kVocabulary, 2), [&](Pool& p) {
      const ops::CrossEntropyStatsArgs args = stats_args(p);
      return [&ctx, args] { ops::cross_entropy_stats(ctx, args); };
    });
    bench.time(fmt::format("cross-entropy finish {}", rows).c_str(), mega(rows * kVocabulary, 4), [&](Pool& p) {
      const ops::CrossEntropyStatsArgs s = stats_args(p);
      const Tensor sums = p.take(Dtype::f64, 1, 3);
      return [&ctx, s, sums] {
        ops::cross_entropy_finish(ctx, {.logits = s.logits,
                                        .targets = s.targets,
                                        .stats = s.stats,
                                        .sums = sums,
                                        .valid_cols = kVocabulary,
                                        .grad_scale = 1e-4});
      };
    });
  }
}

void time_optimizer(Bench& bench) {
  const Context& ctx = gpu_context();
  UpdateState initial;
  initial.updates = 10;
  initial.grad_factor = 1e-3;
  const auto state_memory = allocate(ctx.device, sizeof initial, "a benchmark");
  copy_to_device(ctx, state_memory.get(), &initial, sizeof initial);
  synchronize(ctx);
  const auto* state = static_cast<const UpdateState*>(state_memory.get());
  // A long tensor; the 9 parameters of a block of the 3B Llama; the 16 of one of GPT-2 with 124M.
  const std::int64_t kv = kKvHeads * kHeadDim, c = 768;
  for (const auto& [name, sizes] :
       {std::pair{"100 Mi", std::vector{std::int64_t{100} << 20}},
        std::pair{"llama-3b block",
                  std::vector{kHidden, kHidden * kHidden, kHidden * kv, kHidden * kv, kHidden * kHidden, kHidden,
                              kHidden * kFeedForward, kHidden * kFeedForward, kHidden * kFeedForward}},
        std::pair{"gpt2-124m block",
                  std::vector{c, c, c * c, c, c * c, c, c * c, c, c * c, c, c, c, 4 * c * c, 4 * c, 4 * c * c, c}}}) {
    ops::RunTable<ops::NormRun> norm_runs;
    ops::RunTable<ops::UpdateRun> update_runs;
    std::int64_t n = 0;
    for (const std::int64_t size : sizes) {
      norm_runs.add({.first = n, .count = size});
      update_runs.add({.first = n, .count = size, .weight_decay = 0.1});
      n += size;
    }
    bench.time(fmt::format("squared_norm {}", name).c_str(), mega(n, 4), [&](Pool& p) {
      const ops::SquaredNormArgs args{p.take(Dtype::f32, 1, n), norm_runs, p.take(Dtype::f64, 1, 2)};
      return [&ctx, args] { ops::squared_norm(ctx, args); };
    });
    for (const Dtype moments : {Dtype::f32, Dtype::bf16})
      bench.time(fmt::format("adamw {} moments {}", dtype_name(moments), name).c_str(),
                 mega(n, 12 + 4 * dtype_size(moments)), [&](Pool& p) {
                   ops::AdamWArgs args{.runs = update_runs, .state = state, .lr = 1e-6};
                   args.shard.weight = p.take(Dtype::bf16, 1, n);
                   args.shard.low = p.take(Dtype::u16, 1, n);
                   args.shard.grad = p.take(Dtype::f32, 1, n);
                   args.shard.m = p.take(moments, 1, n);
                   args.shard.v = p.take(moments, 1, n);
                   return [&ctx, args] { ops::adamw(ctx, args); };
                 });
  }
}

TEST(GpuBench, Table) {
  TRAINER_REQUIRE_GPU();
  if (std::getenv("TRAINER_GPU_BENCH") == nullptr) GTEST_SKIP() << "only with TRAINER_GPU_BENCH=1";
  Bench bench;
  time_rows(bench);
  time_activations(bench);
  time_heads(bench);
  time_vocabulary(bench);
  time_optimizer(bench);
  synchronize(gpu_context());
}

}  // namespace
}  // namespace trainer::testing
