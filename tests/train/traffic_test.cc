// Bytes that a training step communicates, against the formulas of docs/performance.md.
#include <gtest/gtest.h>

#include "parallel/recording_communicator.h"
#include "tests/support/layout_check.h"
#include "tests/support/mpi_world.h"

namespace trainer::test {
namespace {

/// Elements of blocks [first, last] on this rank.
std::int64_t elements(const ParamLayout& layout, int first, int last) {
  std::int64_t sum = 0;
  for (int block = first; block <= last; ++block) sum += layout.numel(block);
  return sum;
}

/// What one micro-batch gathers of the transformer blocks under ZeRO 3, and what is gathered once a step besides: of
/// either slot the first block is still there from the backward pass before, and the last from the forward pass.
struct Gathered {
  std::int64_t each = 0, once = 0;
};
Gathered gathered_layers(const ParamLayout& layout, std::int64_t resident) {
  const int layers = layout.num_blocks() - 2;
  Gathered sum;
  std::int64_t first[2] = {0, 0}, last[2] = {0, 0};
  for (int block = 1; block <= layers; ++block) {
    const std::int64_t numel = layout.numel(block);
    if (block * resident / layers > (block - 1) * resident / layers) {
      sum.once += numel;
      continue;
    }
    sum.each += 2 * numel;
    if (first[block % 2] == 0) first[block % 2] = numel;
    last[block % 2] = numel;
  }
  for (const int slot : {0, 1}) {
    sum.each -= first[slot] + last[slot];
    sum.once += first[slot];
  }
  return sum;
}

struct Traffic {
  std::int64_t reduce_scatter = 0, all_gather = 0;  // bytes of whole tensors, in the ZeRO group
  std::int64_t replicas = 0;                        // all-reduce over replicas of the state
};

/// `bytes`: of a weight, and of a gradient on the wire.
Traffic expected_over_dp(const Layout& l, const ParamLayout& layout, bool tied, std::int64_t bytes) {
  const int zero = l.zero_stage == 0 ? 1 : l.zero_group == 0 ? l.dp : l.zero_group;
  const int head = layout.num_blocks() - 1;
  const std::int64_t all = elements(layout, 0, head), micro = l.accumulation;
  Traffic t;
  t.replicas = l.dp > zero ? bytes * all / zero : 0;
  if (zero == 1) return t;
  t.reduce_scatter = bytes * all * (l.zero_stage >= 2 ? micro : 1);
  t.all_gather = bytes * all;
  if (l.zero_stage < 3) return t;
  const std::int64_t ends = elements(layout, 0, 0) + elements(layout, head, head);
  const Gathered layers = gathered_layers(layout, l.resident_layers);
  t.all_gather = bytes * ((tied ? 1 : micro) * ends + micro * layers.each + layers.once);
  return t;
}

void check_dp_traffic(const Layout& l, bool tied, const std::string& type) {
  SCOPED_TRACE(fmt::format("{} tied {} {}", l.text(), tied, type));
  const std::vector<std::string> precision = {"precision.dtype=" + type, "precision.grad_reduce_dtype=" + type};
  const Config config = family_config("qwen2", with(l.sets(), with(narrow_14b(tied), precision)), test_world().size());
  const auto record = std::make_shared<CommRecord>();
  const FaultPlan no_fault;
  Engine engine(config, {}, std::make_unique<RecordingCommunicator>(new_test_world(), record), no_fault);
  engine.initialize();
  SampleSource source(engine);
  engine.step(source.source(), 0, 1e-3);  // from here on it is as any other
  record->clear();
  engine.step(source.source(), 1, 1e-3);
  const Traffic expected = expected_over_dp(l, engine.model().layout(), tied, type == "bf16" ? 2 : 4);
  EXPECT_EQ(record->of("zero", "reduce_scatter").bytes, expected.reduce_scatter);
  EXPECT_EQ(record->of("zero", "all_gather").bytes, expected.all_gather);
  EXPECT_EQ(record->of("zero_replicas", "all_reduce").bytes, expected.replicas);
}

TEST(Traffic, OfDataParallelRanksFollowsTheFormula) {
  const int ranks = test_world().size();
  for (const int tp : {1, 2})
    for (const int zero : {0, 1, 2, 3})
      for (const int group : {0, 2})
        for (const int accumulation : {1, 2})
          for (const bool tied : {false, true})
            for (const char* type : {"float32", "bf16"}) {
              if (std::string(type) == "bf16" && (tied || accumulation == 1))
                continue;  // the type changes no more there
              if (ranks % tp == 0 && ranks / tp > 1 && (group == 0 || (zero > 0 && ranks / tp % group == 0)))
                for (const int resident : {0, 3})
                  if (zero == 3 || resident == 0)
                    check_dp_traffic({.dp = ranks / tp,
                                      .tp = tp,
                                      .zero_stage = zero,
                                      .zero_group = group,
                                      .accumulation = accumulation,
                                      .resident_layers = resident},
                                     tied, type);
            }
}

/// Bytes of the residual stream's collectives in one micro-batch. Those of the layers run in steps: what such a step
/// sends is counted, which is a part of what the whole collective does.
void check_tp_traffic(const Layout& l) {
  SCOPED_TRACE(l.text());
  const Config config =
      family_config("qwen2", with(l.sets(), with(narrow_14b(false), {"precision.dtype=float32"})), test_world().size());
  const auto record = std::make_shared<CommRecord>();
  const FaultPlan no_fault;
  Engine engine(config, {}, std::make_unique<RecordingCommunicator>(new_test_world(), record), no_fault);
  engine.initialize();
  SampleSource source(engine);
  record->clear();
  engine.compute_gradients(source.source(), 0);
  const ModelShape& shape = engine.model().shape();
  const ParamLayout& layout = engine.model().layout();
  const std::int64_t stream = shape.tokens * shape.hidden * 4, micro = l.accumulation;
  const std::int64_t layers = config.model.num_layers;
  const std::int64_t stats = shape.tokens * 3 * 4 * l.tp;
  std::int64_t partial = 0;  // gradients that arrive in parts, as far as this rank keeps them
  for (int block = 0; block < layout.num_blocks(); ++block)
    for (const FlatRange& range : layout.tp_partial(block)) {
      const Communicator& zero = engine.mesh().zero();
      partial += 4 * intersect(range, layout.shard(block, zero.rank(), zero.size())).count;
    }
  if (l.sequence_parallel) {
    EXPECT_EQ(record->of("tp", "reduce_scatter").bytes, micro * stream * 2) << "embedding and head";
    EXPECT_EQ(record->of("tp", "all_gather").bytes, micro * (stream * 2 + stats));
    EXPECT_EQ(record->of("tp", "rotate").wire_bytes, micro * stream * (4 + 6) * layers * (l.tp - 1) / l.tp);
    EXPECT_EQ(record->of("tp", "all_reduce").bytes, partial);
    EXPECT_TRUE(partial > 0 || l.zero_stage > 0);
  } else {
    EXPECT_EQ(record->of("tp", "all_reduce").bytes, micro * stream * (4 * layers + 2) + partial);
    EXPECT_EQ(record->of("tp", "reduce_scatter").bytes, 0);
    EXPECT_EQ(record->of("tp", "all_gather").bytes, micro * stats);
  }
}

TEST(Traffic, OfTensorParallelRanksFollowsTheFormula) {
  const int ranks = test_world().size();
  for (const int tp : {2, 4, 8})
    for (const bool sequence_parallel : {false, true})
      for (const int zero : {0, 3})
        if (ranks % tp == 0 && (zero == 0 || ranks > tp))
          check_tp_traffic({.dp = ranks / tp,
                            .tp = tp,
                            .sequence_parallel = sequence_parallel,
                            .zero_stage = zero,
                            .accumulation = 2});
}

}  // namespace
}  // namespace trainer::test
