#include <gtest/gtest.h>

#include "kernels/ops.h"
#include "tests/kernels/host_tensor.h"
#include "tests/support/gradcheck.h"

namespace trainer::testing {
namespace {

const Context kCpu{};

/// Sequences and sizes of one test, with its tensors.
struct AttentionCase {
  ops::AttentionShape shape;
  std::vector<std::int32_t> q_starts, kv_starts;
};

AttentionCase make_case(std::int64_t heads, std::int64_t kv_heads, std::int64_t head_dim,
                        std::vector<std::int32_t> q_starts, std::vector<std::int32_t> kv_starts = {}) {
  AttentionCase c;
  c.shape = {.heads = heads, .kv_heads = kv_heads, .head_dim = head_dim};
  c.shape.scale = 1 / std::sqrt(static_cast<double>(head_dim));
  c.shape.max_seq = q_starts.back();
  c.shape.total_heads = heads;
  c.kv_starts = kv_starts.empty() ? q_starts : std::move(kv_starts);
  c.q_starts = std::move(q_starts);
  return c;
}

/// The tensors of a case, with random q, k and v.
struct Tensors {
  explicit Tensors(const AttentionCase& c)
      : shape(c.shape),
        q_starts(c.q_starts),
        kv_starts(c.kv_starts),
        q(random_tensor(c.q_starts.back(), c.shape.heads * c.shape.head_dim, 1)),
        k(random_tensor(c.kv_starts.back(), c.shape.kv_heads * c.shape.head_dim, 2)),
        v(random_tensor(c.kv_starts.back(), c.shape.kv_heads * c.shape.head_dim, 3)),
        out(Dtype::f64, q.rows(), q.cols()),
        lse(Dtype::f64, 1, q.rows() * c.shape.heads) {}

  void forward() {
    ops::attention_forward(
        kCpu,
        {.shape = shape, .q = q, .k = k, .v = v, .q_starts = q_starts, .kv_starts = kv_starts, .out = out, .lse = lse});
  }

  ops::AttentionShape shape;
  HostIds q_starts, kv_starts;
  HostTensor q, k, v, out, lse;
};

/// The definition, one element at a time.
void expect_definition(const AttentionCase& c) {
  Tensors t(c);
  t.forward();
  const ops::AttentionShape& s = c.shape;
  for (std::size_t b = 0; b + 1 < c.q_starts.size(); ++b) {
    const std::int64_t q0 = c.q_starts[b], nq = c.q_starts[b + 1] - q0;
    const std::int64_t k0 = c.kv_starts[b], nk = c.kv_starts[b + 1] - k0;
    for (std::int64_t h = 0; h < s.heads; ++h)
      for (std::int64_t i = 0; i < nq; ++i) {
        const std::int64_t kv_column = h / (s.heads / s.kv_heads) * s.head_dim;
        std::vector<double> weights(static_cast<std::size_t>(nk), 0.0);
        double sum = 0;
        for (std::int64_t j = 0; j < nk; ++j) {
          if (j > i + nk - nq || (s.window > 0 && j <= i + nk - nq - s.window)) continue;
          double score = 0;
          for (std::int64_t d = 0; d < s.head_dim; ++d)
            score += t.q.get(q0 + i, h * s.head_dim + d) * t.k.get(k0 + j, kv_column + d);
          weights[static_cast<std::size_t>(j)] = std::exp(s.scale * score);
          sum += weights[static_cast<std::size_t>(j)];
        }
        EXPECT_NEAR(t.lse.get(0, s.heads * q0 + h * nq + i), std::log(sum), 1e-13);
        for (std::int64_t d = 0; d < s.head_dim; ++d) {
          double expected = 0;
          for (std::int64_t j = 0; j < nk; ++j) {
            double weight = weights[static_cast<std::size_t>(j)] / sum;
            if (s.dropout.p > 0) {
              const std::int64_t pair =
                  (s.first_sequence + static_cast<std::int64_t>(b)) * s.total_heads + s.first_head + h;
              const auto index = static_cast<std::uint64_t>((pair * nq + i) * nk + j);
              weight = uniform_at(s.dropout.key, index) >= s.dropout.p ? weight / (1 - s.dropout.p) : 0;
            }
            expected += weight * t.v.get(k0 + j, kv_column + d);
          }
          EXPECT_NEAR(t.out.get(q0 + i, h * s.head_dim + d), expected, 1e-13);
        }
      }
  }
}

void expect_gradients(const AttentionCase& c) {
  Tensors t(c);
  const HostTensor dout = random_tensor(t.q.rows(), t.q.cols(), 4);
  const auto loss = [&] {
    t.forward();
    return dot(t.out, dout);
  };
  loss();
  HostTensor dq(Dtype::f64, t.q.rows(), t.q.cols()), dk(Dtype::f64, t.k.rows(), t.k.cols()), dv = dk;
  for (HostTensor* gradient : {&dq, &dk, &dv}) gradient->fill(std::nan(""));
  ops::attention_backward(kCpu, {.shape = t.shape,
                                 .q = t.q,
                                 .k = t.k,
                                 .v = t.v,
                                 .q_starts = t.q_starts,
                                 .kv_starts = t.kv_starts,
                                 .out = t.out,
                                 .lse = t.lse,
                                 .dout = dout,
                                 .dq = dq,
                                 .dk = dk,
                                 .dv = dv});
  const GradcheckOptions options{.elementwise = 150};
  EXPECT_TRUE(gradient_matches(t.q.span(), dq.span(), loss, options));
  EXPECT_TRUE(gradient_matches(t.k.span(), dk.span(), loss, options));
  EXPECT_TRUE(gradient_matches(t.v.span(), dv.span(), loss, options));
}

std::vector<AttentionCase> cases() {
  std::vector<AttentionCase> all;
  all.push_back(make_case(1, 1, 1, {0, 1}));
  all.push_back(make_case(2, 2, 3, {0, 5}));
  all.push_back(make_case(6, 2, 4, {0, 3, 4, 11}));          // grouped queries, several sequences
  all.push_back(make_case(2, 1, 3, {0, 2, 2, 7}));           // an empty sequence
  all.push_back(make_case(2, 2, 5, {0, 2, 5}, {0, 7, 10}));  // more keys than queries
  all.push_back(make_case(3, 1, 2, {0, 70, 135}));           // more than one block of queries
  all.push_back(make_case(2, 1, 4, {0, 66}, {0, 130}));      // blocks, and more keys
  for (const std::size_t i : {2u, 4u, 5u}) {
    AttentionCase windowed = all[i];
    windowed.shape.window = i == 5 ? 9 : 2;
    all.push_back(windowed);
  }
  for (const std::size_t i : {2u, 4u, 8u, 5u}) {
    AttentionCase dropping = all[i];
    dropping.shape.dropout = {.p = 0.3, .key = 77};
    dropping.shape.first_sequence = 3;
    dropping.shape.first_head = 2;
    dropping.shape.total_heads = 12;
    all.push_back(dropping);
  }
  return all;
}

TEST(Attention, TwoTokensByHand) {
  // Scores ln 1 and ln 3 for the second query: weights 1/4 and 3/4.
  Tensors t(make_case(1, 1, 1, {0, 2}));
  t.shape.scale = 1;
  t.q.fill(1);
  t.k.set(0, 0, 0);
  t.k.set(1, 0, std::log(3.0));
  t.v.set(0, 0, 8);
  t.v.set(1, 0, 16);
  t.forward();
  EXPECT_DOUBLE_EQ(t.out.get(0, 0), 8);
  EXPECT_DOUBLE_EQ(t.out.get(1, 0), 14);
  EXPECT_DOUBLE_EQ(t.lse.get(0, 0), 0);
  EXPECT_DOUBLE_EQ(t.lse.get(0, 1), std::log(4.0));
}

TEST(Attention, EqualsItsDefinition) {
  int number = 0;
  for (const AttentionCase& c : cases()) {
    SCOPED_TRACE(number++);
    expect_definition(c);
  }
}

TEST(Attention, Gradients) {
  int number = 0;
  for (const AttentionCase& c : cases()) {
    SCOPED_TRACE(number++);
    expect_gradients(c);
  }
}

TEST(Attention, KeysThatNoQuerySeesGetZeroGradient) {
  AttentionCase c =
      make_case(1, 1, 3, {0, 2, 2}, {0, 6, 9});  // a window of 1 sees keys 4 and 5; the second has no query
  c.shape.window = 1;
  Tensors t(c);
  t.forward();
  HostTensor dq(Dtype::f64, 2, 3), dk(Dtype::f64, 9, 3), dv = dk;
  dk.fill(std::nan(""));
  dv.fill(std::nan(""));
  ops::attention_backward(kCpu, {.shape = t.shape,
                                 .q = t.q,
                                 .k = t.k,
                                 .v = t.v,
                                 .q_starts = t.q_starts,
                                 .kv_starts = t.kv_starts,
                                 .out = t.out,
                                 .lse = t.lse,
                                 .dout = t.q,
                                 .dq = dq,
                                 .dk = dk,
                                 .dv = dv});
  for (const std::int64_t key : {0, 1, 2, 3, 6, 7, 8})
    for (std::int64_t d = 0; d < 3; ++d) {
      EXPECT_EQ(dk.get(key, d), 0);
      EXPECT_EQ(dv.get(key, d), 0);
    }
  for (std::int64_t d = 0; d < 3; ++d) EXPECT_EQ(dv.get(5, d), t.q.get(1, d));  // its only key has weight 1
}

TEST(Attention, LargeScoresDoNotOverflow) {
  Tensors t(make_case(1, 1, 2, {0, 3}));
  for (double& x : t.q.span()) x = 1e4;
  for (double& x : t.k.span()) x *= 1e4;
  t.forward();
  for (const double x : t.out.span()) EXPECT_TRUE(std::isfinite(x));
  for (const double x : t.lse.span()) EXPECT_TRUE(std::isfinite(x));
}

TEST(Attention, RefusesWrongSequenceStarts) {
  Tensors beyond(make_case(1, 1, 2, {0, 3}));
  beyond.q_starts = HostIds{0, 4};
  EXPECT_THROW(beyond.forward(), Error);
  Tensors fewer_keys(make_case(1, 1, 2, {0, 3}));
  fewer_keys.kv_starts = HostIds{0, 2};
  EXPECT_THROW(fewer_keys.forward(), Error);
  Tensors backwards(make_case(1, 1, 2, {0, 3}));
  backwards.q_starts = backwards.kv_starts = HostIds{2, 0};
  EXPECT_THROW(backwards.forward(), Error);
}

}  // namespace
}  // namespace trainer::testing
