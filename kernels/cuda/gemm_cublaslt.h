// GEMM through cuBLASLt with a remembered choice of algorithm for each shape.
#pragma once
#include <cublasLt.h>

#include <cstdint>
#include <map>
#include <string>
#include <tuple>

#include "core/runtime/context.h"
#include "core/runtime/tensor.h"
#include "kernels/gemm_choices.h"

namespace trainer {

/// Everything that an algorithm depends on. Sizes are column-major, as the library sees them: C [m, n] = op(A) [m, k]
/// op(B) [k, n].
struct GemmShape {
  std::int64_t m = 0, n = 0, k = 0;
  std::int64_t lda = 0, ldb = 0, ldc = 0;
  bool transpose_a = false, transpose_b = false;
  Dtype in = Dtype::bf16, out = Dtype::bf16;
  bool accumulate = false;  // C += instead of C =
  bool bias = false;        // a value for each row of C is added
  int alignment = 16;       // bytes, of all pointers

  auto tie() const {
    return std::tie(m, n, k, lda, ldb, ldc, transpose_a, transpose_b, in, out, accumulate, bias, alignment);
  }
  bool operator<(const GemmShape& other) const { return tie() < other.tie(); }
};

struct GemmOperands {
  const void* a = nullptr;
  const void* b = nullptr;
  const void* bias = nullptr;  // [m] of the output's type
  void* c = nullptr;
};

/// The choices of one context.
class GemmTable {
 public:
  explicit GemmTable(std::string environment) : environment_(std::move(environment)) {}

  /// Queues the GEMM on ctx.stream, with ctx.workspace. 16-bit and float32 inputs, sums in float32 (never TF32).
  void run(const Context& ctx, cublasLtHandle_t handle, const GemmShape& shape, const GemmOperands& operands);

  void set_tuning(GemmTuning tuning) { tuning_ = tuning; }
  std::string text() const;
  std::int64_t use(const std::string& text);

 private:
  struct Choice {
    cublasLtMatmulAlgo_t algorithm;
    bool tuned = false;  // timed, or taken over from a run that timed it
  };
  const Choice& choose(const Context& ctx, cublasLtHandle_t handle, const GemmShape& shape,
                       const GemmOperands& operands);

  std::string environment_;  // "<card> <library version>", without blanks inside
  GemmTuning tuning_ = GemmTuning::off;
  std::map<GemmShape, Choice> choices_;
};

}  // namespace trainer
