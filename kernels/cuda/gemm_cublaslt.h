// GEMM through cuBLASLt with a remembered choice of algorithm for each shape.
#pragma once
#include <cublasLt.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <tuple>

#include "core/runtime/context.h"
#include "core/runtime/tensor.h"
#include "kernels/gemm_choices.h"

namespace trainer {

/// What the library does besides the product, without another pass over memory. The letters stand in the text of a
/// choice. Rows and columns are those of C, column-major.
enum class GemmEpilogue : char {
  none = '-',
  bias = 'b',           // a value for each row is added
  gelu = 'g',           // aux = C as it is without this, C = gelu_tanh of it
  gelu_bias = 'h',      // bias, then gelu
  gelu_gradient = 'd',  // C times the derivative of gelu_tanh at aux
  sums_of_b = 's',      // bias = the sums of op(B) over k, one for each column of C
};

/// Everything that an algorithm depends on. Sizes are column-major, as the library sees them: C [m, n] = op(A) [m, k]
/// op(B) [k, n].
struct GemmShape {
  std::int64_t m = 0, n = 0, k = 0;
  std::int64_t lda = 0, ldb = 0, ldc = 0;
  bool transpose_a = false, transpose_b = false;
  Dtype in = Dtype::bf16, out = Dtype::bf16;
  bool accumulate = false;  // C += instead of C =
  GemmEpilogue epilogue = GemmEpilogue::none;
  int alignment = 16;  // bytes, of all pointers

  auto tie() const {
    return std::tie(m, n, k, lda, ldb, ldc, transpose_a, transpose_b, in, out, accumulate, epilogue, alignment);
  }
  bool operator<(const GemmShape& other) const { return tie() < other.tie(); }
};

struct GemmOperands {
  const void* a = nullptr;
  const void* b = nullptr;
  void* c = nullptr;
  const void* addend = nullptr;  // laid out as C, which is this plus the product when `accumulate`; null: C itself
  void* bias = nullptr;          // of the output's type; read by bias, written by sums_of_b
  void* aux = nullptr;           // laid out as C; written by gelu, read by gelu_gradient
};

/// The choices of one context.
class GemmTable {
 public:
  explicit GemmTable(std::string environment) : environment_(std::move(environment)) {}

  /// Queues work whose result is that of a GEMM with an epilogue: the GEMM without it, and what it leaves to do.
  using Separate = std::function<void()>;

  /// Queues the GEMM on ctx.stream, with ctx.workspace. 16-bit and float32 inputs, sums in float32 (never TF32).
  void run(const Context& ctx, cublasLtHandle_t handle, const GemmShape& shape, const GemmOperands& operands);
  /// The same, unless the library has no such epilogue, or `separate` was the faster when both were timed: then nothing
  /// is queued, and the result is false. `separate` may run for timing.
  bool run_unless_slower(const Context& ctx, cublasLtHandle_t handle, const GemmShape& shape,
                         const GemmOperands& operands, const Separate& separate);

  void set_tuning(GemmTuning tuning) { tuning_ = tuning; }
  std::string text() const;
  std::int64_t use(const std::string& text);

 private:
  struct Choice {
    cublasLtMatmulAlgo_t algorithm{};
    bool tuned = false;     // timed, or taken over from a run that timed it
    bool separate = false;  // better without the epilogue; there is no algorithm
  };
  /// `separate`: null where there is no other way.
  const Choice& choose(const Context& ctx, cublasLtHandle_t handle, const GemmShape& shape,
                       const GemmOperands& operands, const Separate* separate);

  std::string environment_;  // "<card> <library version>", without blanks inside
  GemmTuning tuning_ = GemmTuning::off;
  std::map<GemmShape, Choice> choices_;
};

}  // namespace trainer
