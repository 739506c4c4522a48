// The checker that the other tests rely on: it accepts right gradients and sees planted faults.
#include "tests/support/gradcheck.h"

#include <gtest/gtest.h>

#include "tests/kernels/host_tensor.h"

namespace trainer::testing {
namespace {

// loss = sum of sin(x_i) x_{i+1}, cyclic.
double cyclic_loss(std::span<const double> x) {
  double sum = 0;
  for (std::size_t i = 0; i < x.size(); ++i) sum += std::sin(x[i]) * x[(i + 1) % x.size()];
  return sum;
}
std::vector<double> cyclic_gradient(std::span<const double> x) {
  std::vector<double> g(x.size());
  const std::size_t n = x.size();
  for (std::size_t i = 0; i < n; ++i) g[i] = std::cos(x[i]) * x[(i + 1) % n] + std::sin(x[(i + n - 1) % n]);
  return g;
}

TEST(Gradcheck, AcceptsRightGradientsAndLeavesTheInput) {
  for (const std::int64_t n : {2, 17, 3000}) {
    HostTensor x = random_tensor(1, n, 1);
    const std::vector<double> before = x.values();
    EXPECT_TRUE(gradient_matches(x.span(), cyclic_gradient(x.span()), [&] { return cyclic_loss(x.span()); })) << n;
    EXPECT_EQ(x.values(), before);
  }
}

TEST(Gradcheck, SeesOneWrongElement) {
  HostTensor x = random_tensor(1, 17, 2);
  for (const std::size_t wrong : {0u, 8u, 16u}) {
    std::vector<double> gradient = cyclic_gradient(x.span());
    gradient[wrong] += 1e-6;
    EXPECT_FALSE(gradient_matches(x.span(), gradient, [&] { return cyclic_loss(x.span()); })) << wrong;
  }
}

TEST(Gradcheck, SeesAWrongScaleAMissingTermAndNan) {
  HostTensor x = random_tensor(1, 17, 3);
  const auto loss = [&] { return cyclic_loss(x.span()); };
  std::vector<double> scaled = cyclic_gradient(x.span());
  for (double& g : scaled) g *= 1.000001;
  EXPECT_FALSE(gradient_matches(x.span(), scaled, loss));
  std::vector<double> partial(x.span().size());
  for (std::size_t i = 0; i < partial.size(); ++i) partial[i] = std::cos(x.span()[i]) * x.span()[(i + 1) % 17];
  EXPECT_FALSE(gradient_matches(x.span(), partial, loss));
  std::vector<double> broken = cyclic_gradient(x.span());
  broken[5] = std::numeric_limits<double>::quiet_NaN();
  EXPECT_FALSE(gradient_matches(x.span(), broken, loss));
}

TEST(Gradcheck, RandomDirectionsAloneSeeAWrongElementOfALargeTensor) {
  HostTensor x = random_tensor(1, 3000, 4);
  std::vector<double> gradient = cyclic_gradient(x.span());
  gradient[1234] += 0.01;
  EXPECT_FALSE(gradient_matches(x.span(), gradient, [&] { return cyclic_loss(x.span()); }));
}

TEST(Gradcheck, RefusesAGradientOfAnotherSize) {
  HostTensor x = random_tensor(1, 4, 5);
  EXPECT_FALSE(gradient_matches(x.span(), std::vector<double>(3), [&] { return cyclic_loss(x.span()); }));
}

}  // namespace
}  // namespace trainer::testing
