// What an op costs at least, from its arguments alone: floating-point operations, and bytes that must move when each
// input is read once and each output written once. For the split of a step and for its floor (core/train/bench.h).
#pragma once
#include <cstdint>
#include <string>

#include "kernels/ops.h"

namespace trainer {

/// The rows of the split table.
enum class OpKind : std::uint8_t { gemm, attention, memory_bound, optimizer, communication };
constexpr int kOpKinds = 5;
const char* op_kind_name(OpKind kind);

struct OpCost {
  OpKind kind = OpKind::memory_bound;
  std::int64_t bytes = 0;
  double flops = 0.0;  // of matrix products and attention; a multiply-add counts as two
  std::string shape;   // "65536 x 768 -> 2304", for tables
};

namespace ops {
#define TRAINER_DECLARE_COST(name, Args) OpCost cost(const Args& args);
TRAINER_OPS(TRAINER_DECLARE_COST)
#undef TRAINER_DECLARE_COST
}  // namespace ops

}  // namespace trainer
