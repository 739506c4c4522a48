// Every collective against results that are known beforehand.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "core/runtime/rng.h"
#include "parallel/host_exchange.h"
#include "parallel/mpi_job.h"
#include "tests/support/mpi_world.h"

namespace trainer {
namespace {

const Context kHost;

/// Small integers: exact in every type, so that the reduced result is known whatever the order.
double value_at(int rank, std::int64_t i) {
  return static_cast<double>((rank + 1) * ((i * 7 + 3) % 5));
}

template <class T>
double to_double(T value) {
  if constexpr (std::is_same_v<T, Bfloat16> || std::is_same_v<T, Float16>)
    return static_cast<double>(static_cast<float>(value));
  else
    return static_cast<double>(value);
}

template <class T>
T from_double(double value) {
  if constexpr (std::is_same_v<T, Bfloat16> || std::is_same_v<T, Float16>)
    return T(static_cast<float>(value));
  else
    return static_cast<T>(value);
}

template <class T>
std::vector<T> make(int rank, std::int64_t n) {
  std::vector<T> data;
  for (std::int64_t i = 0; i < n; ++i) data.push_back(from_double<T>(value_at(rank, i)));
  return data;
}

template <class T>
Tensor tensor(std::vector<T>& data) {
  return tensor_over(data.data(), DtypeOf<T>::value, 1, static_cast<std::int64_t>(data.size()));
}

template <class T>
class Collectives : public testing::Test {
 protected:
  Communicator& world = test_world();
  int p = world.size();
};

using Types = testing::Types<double, float, Bfloat16, Float16, std::int32_t, std::int64_t, std::uint8_t>;
TYPED_TEST_SUITE(Collectives, Types);

// Nothing, one element, less than a rank each, odd, inline limit, several chunks.
constexpr std::int64_t kCounts[] = {0, 1, 3, 7, 129, 1024, 1025, 5003};

TYPED_TEST(Collectives, AllReduceGivesTheKnownResult) {
  for (const std::int64_t n : kCounts) {
    for (const ReduceOp op : {ReduceOp::sum, ReduceOp::max, ReduceOp::min}) {
      std::vector<TypeParam> data = make<TypeParam>(this->world.rank(), n);
      this->world.all_reduce(kHost, tensor(data), op);
      for (std::int64_t i = 0; i < n; ++i) {
        const double unit = value_at(0, i);
        const double sum = unit * this->p * (this->p + 1) / 2;
        const double expected = op == ReduceOp::sum ? sum : op == ReduceOp::max ? unit * this->p : unit;
        ASSERT_EQ(to_double(data[static_cast<std::size_t>(i)]), expected) << "n " << n << " element " << i;
      }
    }
  }
}
}  // namespace
}  // namespace trainer
