// Who is in which group, for every shape that the ranks of the test allow.
#include <gtest/gtest.h>

#include "parallel/mesh.h"
#include "tests/parallel/element_types.h"
#include "tests/support/mpi_world.h"

namespace trainer {
namespace {

/// World ranks of a group, in the group's order.
std::vector<int> members(Communicator& group) {
  std::int32_t mine = test_world().rank();
  std::vector<std::int32_t> all(static_cast<std::size_t>(group.size()));
  group.all_gather({}, tensor_over(&mine, Dtype::i32, 1, 1), tensor_of(all));
  return {all.begin(), all.end()};
}

std::vector<int> every(int first, int stride, int count) {
  std::vector<int> ranks(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) ranks[static_cast<std::size_t>(i)] = first + i * stride;
  return ranks;
}

TEST(Mesh, GroupsOfEveryShape) {
  const int size = test_world().size();
  for (int tp = 1; tp <= size; tp *= 2)
    for (int zero = 1; zero <= size / tp; zero *= 2)
      for (int kv = 1; kv <= tp; kv *= 2) {
        SCOPED_TRACE(fmt::format("tp {} zero {} kv replicas {}", tp, zero, kv));
        const int dp = size / tp;
        const Mesh mesh(new_test_world(), {.tp = tp, .dp = dp, .zero = zero, .kv_replicas = kv});
        const int rank = test_world().rank();
        const int tp_rank = rank % tp, dp_rank = rank / tp;  // tp runs fastest
        EXPECT_EQ(members(mesh.world()), every(0, 1, size));
        EXPECT_EQ(members(mesh.tp()), every(dp_rank * tp, 1, tp));
        EXPECT_EQ(members(mesh.dp()), every(tp_rank, tp, dp));
        EXPECT_EQ(members(mesh.zero()), every(tp_rank + dp_rank / zero * zero * tp, tp, zero));
        EXPECT_EQ(members(mesh.zero_replicas()), every(tp_rank + dp_rank % zero * tp, zero * tp, dp / zero));
        EXPECT_EQ(members(mesh.kv_replicas()), every(dp_rank * tp + tp_rank / kv * kv, 1, kv));
        EXPECT_EQ(mesh.tp().rank(), tp_rank);
        EXPECT_EQ(mesh.dp().rank(), dp_rank);
        EXPECT_EQ(mesh.zero().rank(), dp_rank % zero);
        EXPECT_EQ(mesh.zero_replicas().rank(), dp_rank / zero);
        EXPECT_EQ(mesh.kv_replicas().rank(), tp_rank % kv);
        EXPECT_EQ(mesh.kv_replicas().name(), "kv_replicas");
      }
}

std::string refusal(const MeshShape& shape) {
  try {
    const Mesh mesh(new_test_world(), shape);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::config);
    return e.what();
  }
  return "";
}

TEST(Mesh, RefusesShapesThatDoNotFitAndNamesBothNumbers) {
  const int size = test_world().size();
  EXPECT_EQ(refusal({.tp = 3, .dp = size}),
            fmt::format("tensor_parallel_size 3 x data_parallel_size {} = {} does not match the {} ranks of this job",
                        size, 3 * size, size));
  EXPECT_EQ(refusal({.tp = 1, .dp = size, .zero = size + 1}),
            fmt::format("zero_group_size {} does not divide data_parallel_size {}", size + 1, size));
  EXPECT_NE(refusal({.tp = size, .dp = 1, .kv_replicas = size + 1}).find("tensor_parallel_size"), std::string::npos);
}

}  // namespace
}  // namespace trainer
