// Attention within documents: a sample of several documents is the function of each of them alone.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "core/train/bench.h"
#include "parallel/self_communicator.h"
#include "tests/support/engine_harness.h"
#include "tests/support/goldens.h"

namespace trainer::test {
namespace {

constexpr std::int64_t kLength = 64;
const FaultPlan kNoFault;

/// Samples of one micro-batch, float64.
std::unique_ptr<Engine> make_engine(const std::string& family, std::int64_t seq_length, bool documents) {
  const Config config =
      family_config(family,
                    {fmt::format("train.seq_length={}", seq_length),
                     fmt::format("model.max_position_embeddings={}", kLength), "train.micro_batch_size=1",
                     "train.global_batch_size=1", fmt::format("data.intra_document_attention={}", documents)},
                    1);
  auto engine = std::make_unique<Engine>(config, Context{}, std::make_unique<SelfCommunicator>("world"), kNoFault);
  load_golden_weights(*engine);
  return engine;
}

/// What a model says of a sample; losses and gradients are sums over its targets.
struct Answer {
  std::vector<double> logits;  // [T, vocabulary]
  double loss = 0.0;
  WholeTensors gradients;
};
Answer answer_to(const std::string& family, const Sample& sample) {
  const auto length = std::ssize(sample.ids);
  const auto engine = make_engine(family, length, !sample.documents.empty());
  SampleSource source(*engine, [&](std::int64_t, std::int64_t) { return sample; });
  Answer answer;
  answer.logits = logits_of(*engine, source.next());
  source.seek(0);
  engine->compute_gradients(source.source(), 0);
  answer.loss = engine->sums().loss;
  answer.gradients = whole(owned_gradients(*engine));
  for (auto& [name, gradient] : answer.gradients)
    for (double& g : gradient) g *= static_cast<double>(length);  // they are divided by it
  return answer;
}

/// What it says of the documents of a sample, one by one.
Answer answer_to_each(const std::string& family, const Sample& sample) {
  std::vector<std::int32_t> ends = sample.documents;
  ends.push_back(static_cast<std::int32_t>(sample.ids.size()));
  Answer sum;
  std::int32_t start = 0;
  for (const std::int32_t end : ends) {
    const Answer one = answer_to(family, {{sample.ids.begin() + start, sample.ids.begin() + end},
                                          {sample.targets.begin() + start, sample.targets.begin() + end}});
    sum.logits.insert(sum.logits.end(), one.logits.begin(), one.logits.end());
    sum.loss += one.loss;
    for (const auto& [name, gradient] : one.gradients) {
      std::vector<double>& to = sum.gradients[name];
      to.resize(gradient.size());
      for (std::size_t i = 0; i < gradient.size(); ++i) to[i] += gradient[i];
    }
    start = end;
  }
  return sum;
}

/// Norm of the difference over the norm of what is expected. The second term keeps tensors meaningful that are zero but
/// for rounding, such as the gradient of a key bias without RoPE.
double difference(const std::vector<double>& values, const std::vector<double>& expected) {
  if (values.size() != expected.size()) return INFINITY;
  double squares = 0.0, size = 0.0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    squares += std::pow(values[i] - expected[i], 2);
    size += std::pow(expected[i], 2);
  }
  return std::sqrt(squares) / (std::sqrt(size) + 1e-3 * std::sqrt(static_cast<double>(values.size())));
}

class DocumentsTest : public ::testing::TestWithParam<const char*> {};

TEST_P(DocumentsTest, EachIsWhatItIsAlone) {
  const std::string family = GetParam();
  for (const std::vector<std::int32_t>& documents : {std::vector<std::int32_t>{23}, {1, 23, 24, 63}}) {
    Sample sample = synthetic_sample(0, 1, kLength, load_golden(family).vocab_size);
    const Answer one_document = answer_to(family, sample);
    sample.documents = documents;
    const Answer together = answer_to(family, sample), expected = answer_to_each(family, sample);
    EXPECT_LE(difference(together.logits, expected.logits), 1e-12);
    EXPECT_GT(difference(together.logits, one_document.logits), 1e-3) << "documents change nothing";
    EXPECT_NEAR(together.loss, expected.loss, 1e-12 * expected.loss);
    ASSERT_EQ(together.gradients.size(), expected.gradients.size());
    for (const auto& [name, gradient] : together.gradients)
      EXPECT_LE(difference(gradient, expected.gradients.at(name)), 1e-12) << name;
  }
}

TEST_P(DocumentsTest, EvaluationSeesNoMoreThanTraining) {
  const auto engine = make_engine(GetParam(), kLength, true), blind = make_engine(GetParam(), kLength, false);
  SampleSource source(*engine), of_windows(*blind);
  const double evaluated = engine->evaluate(source.source(), 1).loss;
  source.seek(0);
  engine->compute_gradients(source.source(), 0);
  EXPECT_NEAR(evaluated, engine->sums().loss / engine->sums().target_tokens, 1e-12 * evaluated);
  EXPECT_GT(std::abs(evaluated - blind->evaluate(of_windows.source(), 1).loss), 1e-6);
}

INSTANTIATE_TEST_SUITE_P(Families, DocumentsTest, ::testing::ValuesIn(kGoldenFamilies),
                         [](const auto& info) { return std::string(info.param); });

TEST(Documents, TheWorstCaseHasRoom) {
  const auto engine = make_engine("llama3", kLength, true);
  Sample sample = synthetic_sample(0, 0, kLength, engine->config().model.vocab_size);
  for (std::int32_t i = 1; i < kLength; ++i) sample.documents.push_back(i);
  SampleSource source(*engine, [&](std::int64_t, std::int64_t) { return sample; });
  const Batch batch = engine->upload(source.next());
  EXPECT_EQ(batch.starts.cols, kLength + 1);
  EXPECT_EQ(batch.max_seq, 1);
}

TEST(Documents, TheBenchmarkRuns) {
  const auto engine = make_engine("llama3", kLength, true);
  const BenchResult result = run_bench(*engine, {.warmup_steps = 1, .steps = 1, .profiled_steps = 1}, {});
  EXPECT_GT(result.median_ms, 0.0);
}

TEST(Documents, ThePlanCountsTheScratchOfCudnnWhereItServes) {
  const auto scratch = [](bool documents, bool deterministic, int sm) {
    const Config config = family_config("llama3",
                                        {"precision.dtype=bf16", "train.device=cuda", "model.head_dim=64",
                                         fmt::format("data.intra_document_attention={}", documents),
                                         fmt::format("train.deterministic={}", deterministic)},
                                        1);
    for (const MemoryReserve& reserve : plan_memory(config, 0, sm).reserves)
      if (reserve.name == "attention workspace") return reserve.bytes;
    return std::int64_t{0};
  };
  EXPECT_GT(scratch(false, true, 90), 0);
  EXPECT_EQ(scratch(true, true, 90), 0) << "our own attention";
  EXPECT_GT(scratch(true, false, 90), scratch(false, false, 90)) << "dq is summed in rows of qkv";
  EXPECT_EQ(scratch(true, false, 80), scratch(false, false, 80)) << "for micro-batches with documents of one length";
}

}  // namespace
}  // namespace trainer::test
