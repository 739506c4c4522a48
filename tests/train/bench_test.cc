// The benchmark on the CPU: what it counts is what the model says, and its parts add up.
#include "core/train/bench.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <numeric>

#include "core/train/profile_trace.h"
#include "core/train/reporting/throughput.h"
#include "parallel/self_communicator.h"
#include "tests/support/engine_harness.h"

namespace trainer::test {
namespace {

Config bench_config(const std::vector<std::string>& more = {}) {
  std::vector<std::string> sets = {"train.micro_batch_size=2", "train.global_batch_size=4", "train.device=cpu",
                                   "precision.dtype=float32", "precision.grad_reduce_dtype=float32"};
  sets.insert(sets.end(), more.begin(), more.end());
  return family_config("llama3", sets, 1);
}

std::unique_ptr<Communicator> alone() {
  return std::make_unique<SelfCommunicator>("world");
}

TEST(Bench, PartsAddUpAndProductsAreThoseOfTheModel) {
  const FaultPlan no_fault;
  const Config config = bench_config();
  Engine engine(config, {}, alone(), no_fault);
  const BenchOptions options{.warmup_steps = 1, .steps = 3, .profiled_steps = 2, .floor_seconds = 0.01};
  const BenchDevice device{.description = "cpu", .peak_tflops = 1.0};
  BenchResult result = run_bench(engine, options, device);

  EXPECT_EQ(result.step_ms.size(), 3U);
  EXPECT_LE(result.min_ms, result.median_ms);
  const double tokens = static_cast<double>(config.train.global_batch_size * config.train.seq_length);
  EXPECT_NEAR(result.tokens_per_second, 1e3 * tokens / result.median_ms, 1e-6 * result.tokens_per_second);
  ASSERT_TRUE(result.mfu);
  EXPECT_NEAR(*result.mfu,
              tokens * model_flops_per_token(config.model, config.train.seq_length) / 1e9 / result.median_ms, 1e-9);

  const double kinds = std::accumulate(result.kind_ms.begin(), result.kind_ms.end(), 0.0);
  EXPECT_NEAR(kinds + result.gap_ms, result.profiled_ms, 1e-6 * result.profiled_ms);
  EXPECT_GT(result.gap_ms, 0.0);
  double ops = 0.0, gemm_flops = 0.0;
  for (const OpTotal& op : result.ops) {
    ops += op.ms;
    if (op.cost.kind == OpKind::gemm) gemm_flops += op.calls * op.cost.flops;
  }
  EXPECT_NEAR(ops, kinds, 1e-6 * kinds);
  // The head is padded to whole tiles; the formula counts the vocabulary as it is.
  const double padding = static_cast<double>(engine.model().shape().vocab - config.model.vocab_size);
  const double expected =
      6.0 * tokens *
      (static_cast<double>(matmul_params(config.model)) + padding * static_cast<double>(config.model.hidden_size));
  EXPECT_NEAR(gemm_flops, expected, 1e-9 * expected);

  EXPECT_FALSE(result.floor);
  add_floor(engine, options.floor_seconds, device, result);
  ASSERT_TRUE(result.floor);
  EXPECT_GE(result.floor->replays, 1);
  EXPECT_LE(result.floor->min_ms, result.floor->median_ms);

  const auto json = nlohmann::json::parse(bench_json(config, result, engine.memory_estimate(), device));
  EXPECT_EQ(json.at("step_ms"), result.median_ms);
  EXPECT_EQ(json.at("ops").size(), result.ops.size());
  const std::string report = bench_report(config, result, engine.memory_estimate(), device);
  for (const char* row : {"GEMM", "attention", "memory-bound", "optimizer", "communication, in turn"})
    EXPECT_NE(report.find(row), std::string::npos) << row << "\n" << report;
  EXPECT_NE(floor_report(result).find("share of the floor"), std::string::npos) << floor_report(result);
}

TEST(Bench, CopiesOfTheFloorTakeWhatIsFreeOrAreLeftOut) {
  constexpr std::int64_t kMiB = std::int64_t{1} << 20;
  EXPECT_EQ(floor_buffer_bytes(10000 * kMiB, 20000 * kMiB), 512 * kMiB);
  EXPECT_EQ(floor_buffer_bytes(10000 * kMiB, 393 * kMiB), 164 * kMiB);
  EXPECT_EQ(floor_buffer_bytes(10000 * kMiB, 192 * kMiB), 64 * kMiB);
  EXPECT_EQ(floor_buffer_bytes(kMiB, 100 * kMiB), kMiB) << "no more than is copied";
  EXPECT_THROW(floor_buffer_bytes(10000 * kMiB, 191 * kMiB), Error);
  BenchResult result;
  result.no_floor = "100 MiB are free";
  EXPECT_NE(floor_report(result).find("100 MiB are free"), std::string::npos);
}

/// A profiler watches and changes nothing.
TEST(Bench, AProfiledStepHasTheSameBits) {
  const FaultPlan no_fault;
  const Config config = bench_config();
  const auto loss = [&](bool profiled) {
    Engine engine(config, {}, alone(), no_fault);
    engine.initialize();
    OpProfiler profiler(engine.context());
    if (profiled) engine.set_profiler(&profiler);
    SampleSource samples(engine);
    for (int step = 0; step < 2; ++step) engine.step(samples.source(), step, 1e-3);
    return engine.state().loss_sum;
  };
  EXPECT_EQ(loss(true), loss(false));
}

TEST(Bench, KeptCallsComputeTheSameAgain) {
  const FaultPlan no_fault;
  const Config config = bench_config({"train.global_batch_size=2"});  // one micro-batch: it stays on the device
  Engine engine(config, {}, alone(), no_fault);
  engine.initialize();
  OpProfiler profiler(engine.context());
  profiler.keep_calls();
  engine.set_profiler(&profiler);
  SampleSource samples(engine);
  engine.compute_gradients(samples.source(), 0);
  engine.set_profiler(nullptr);
  const double loss = engine.sums().loss;
  const auto calls = profiler.take_calls();
  EXPECT_FALSE(calls.empty());
  for (const OpProfiler::Call& call : calls) call.run(engine.context());
  EXPECT_EQ(engine.sums().loss, loss);
}

TEST(Trace, HasEverySliceOnBothTimelines) {
  const FaultPlan no_fault;
  const Config config = bench_config();
  Engine engine(config, {}, alone(), no_fault);
  engine.initialize();
  OpProfiler profiler(engine.context());
  engine.set_profiler(&profiler);
  SampleSource samples(engine);
  engine.step(samples.source(), 0, 1e-3);
  engine.set_profiler(nullptr);
  const auto slices = profiler.take_slices(engine.context());
  const auto json = nlohmann::json::parse(chrome_trace(slices, 3));
  std::size_t complete = 0;
  std::map<std::string, int> names;
  for (const auto& event : json.at("traceEvents")) {
    EXPECT_EQ(event.at("pid"), 3);
    if (event.at("ph") != "X") continue;
    ++complete;
    EXPECT_GE(event.at("dur").get<double>(), 0.0);
    if (event.at("tid") == 0) ++names[event.at("name")];
  }
  EXPECT_EQ(complete, 2 * slices.size());
  const int micro_batches = 2;
  EXPECT_EQ(names["forward block 0"], micro_batches);
  EXPECT_EQ(names["backward block 1"], micro_batches);
  EXPECT_EQ(names["attention_forward"], micro_batches * config.model.num_layers);
  EXPECT_EQ(names["step 1"], 1);
  // A slice lies inside the one that is open around it.
  std::vector<OpProfiler::Slice> open;
  for (const OpProfiler::Slice& slice : slices) {
    open.resize(static_cast<std::size_t>(slice.depth));
    if (!open.empty()) {
      EXPECT_GE(slice.start_ms, open.back().start_ms);
      EXPECT_LE(slice.start_ms + slice.ms, open.back().start_ms + open.back().ms + 1e-6);
    }
    open.push_back(slice);
  }
}

TEST(Traffic, CountsEachInputAndOutputOnce) {
  const auto tensor = [](std::int64_t rows, std::int64_t cols, Dtype dtype) {
    return tensor_over(reinterpret_cast<void*>(256), dtype, rows, cols);
  };
  const Tensor x = tensor(8, 16, Dtype::bf16), w = tensor(32, 16, Dtype::bf16), y = tensor(8, 32, Dtype::bf16);
  const OpCost forward = ops::cost(ops::LinearForwardArgs{.x = x, .w = w, .bias = {}, .y = y});
  EXPECT_EQ(forward.bytes, 2 * (8 * 16 + 32 * 16 + 8 * 32));
  EXPECT_EQ(forward.flops, 2.0 * 8 * 16 * 32);
  const Tensor dw = tensor(32, 16, Dtype::f32);
  EXPECT_EQ(ops::cost(ops::LinearBackwardWeightArgs{.dy = y, .x = x, .dw = dw, .accumulate = true}).bytes,
            2 * (8 * 32 + 8 * 16) + 2 * 4 * 32 * 16);
  // AdamW in bf16: weight, low bits and both moments are read and written, the gradient is read: 28 bytes an element.
  const std::int64_t n = 1000;
  const auto flat = [&](Dtype dtype) { return tensor(1, n, dtype); };
  ops::AdamWArgs adamw;
  adamw.shard = {.weight = flat(Dtype::bf16),
                 .low = flat(Dtype::u16),
                 .master = {},
                 .grad = flat(Dtype::f32),
                 .m = flat(Dtype::f32),
                 .v = flat(Dtype::f32)};
  adamw.runs = {{.count = n / 2}, {.first = n / 2 + 10, .count = n / 4}};
  EXPECT_EQ(ops::cost(adamw).bytes, 28 * (n / 2 + n / 4));
  // Causal attention at half of T x T: 2 products forward, 5 backward.
  ops::AttentionForwardArgs attention;
  attention.shape = {.heads = 4, .kv_heads = 2, .head_dim = 8, .max_seq = 64};
  attention.q = tensor(128, 32, Dtype::bf16);
  EXPECT_EQ(ops::cost(attention).flops, 2.0 * 2 * 128 * 32 * 32);
}

}  // namespace
}  // namespace trainer::test
