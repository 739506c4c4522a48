#include "kernels/cuda/gemm_cublaslt.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <sstream>
#include <string_view>
#include <vector>

#include "core/runtime/cuda_check.h"
#include "core/runtime/device.h"
#include "kernels/cuda/backend.h"

namespace trainer {
namespace {

constexpr int kCandidates = 16;
constexpr int kTimedRuns = 5;
// A card at its power limit lowers its clock within tens of milliseconds; then the algorithm that takes less energy is
// the faster one. So those that are nearly as fast as the fastest are timed again, for long enough (H200: up to 3 %
// apart).
constexpr float kNearlyAsFast = 1.06F;
constexpr float kSustainedMs = 40;                  // of warm-up, and of timing
constexpr float kWorthwhileMs = 0.05F;              // a run; shorter ones do not hold the card at its limit
constexpr std::string_view kSeparate = "separate";  // in the place of an algorithm

void check(cublasStatus_t status, const char* call) {
  if (status != CUBLAS_STATUS_SUCCESS) fail(ExitCode::other, "cuBLASLt: {}: {}", call, cublasLtGetStatusString(status));
}

cudaDataType_t data_type(Dtype dtype) {
  switch (dtype) {
    case Dtype::f32:
      return CUDA_R_32F;
    case Dtype::bf16:
      return CUDA_R_16BF;
    case Dtype::f16:
      return CUDA_R_16F;
    default:
      fail(ExitCode::config, "a GEMM on the GPU cannot take {}", dtype_name(dtype));
  }
}

cublasLtEpilogue_t library_epilogue(GemmEpilogue epilogue) {
  switch (epilogue) {
    case GemmEpilogue::none:
      return CUBLASLT_EPILOGUE_DEFAULT;
    case GemmEpilogue::bias:
      return CUBLASLT_EPILOGUE_BIAS;
    case GemmEpilogue::gelu:
      return CUBLASLT_EPILOGUE_GELU_AUX;
    case GemmEpilogue::gelu_bias:
      return CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
    case GemmEpilogue::gelu_gradient:
      return CUBLASLT_EPILOGUE_DGELU;
    case GemmEpilogue::sums_of_b:
      break;
  }
  return CUBLASLT_EPILOGUE_BGRADB;
}

bool parse_epilogue(char letter, GemmEpilogue& epilogue) {
  epilogue = static_cast<GemmEpilogue>(letter);
  return std::string_view("-bghds").find(letter) != std::string_view::npos;
}

/// The library's descriptors of one shape, freed together.
class Descriptors {
 public:
  Descriptors(const GemmShape& shape, const GemmOperands& operands) {
    check(cublasLtMatmulDescCreate(&operation_, CUBLAS_COMPUTE_32F, CUDA_R_32F), "cublasLtMatmulDescCreate");
    set(CUBLASLT_MATMUL_DESC_TRANSA, shape.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(CUBLASLT_MATMUL_DESC_TRANSB, shape.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, library_epilogue(shape.epilogue));
    if (operands.bias != nullptr) set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, operands.bias);
    if (operands.aux != nullptr) {
      set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, operands.aux);
      set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, shape.ldc);
    }
    a_ = layout(shape.in, shape.transpose_a ? shape.k : shape.m, shape.transpose_a ? shape.m : shape.k, shape.lda);
    b_ = layout(shape.in, shape.transpose_b ? shape.n : shape.k, shape.transpose_b ? shape.k : shape.n, shape.ldb);
    c_ = layout(shape.out, shape.m, shape.n, shape.ldc);
  }
  ~Descriptors() {
    for (cublasLtMatrixLayout_t layout : {a_, b_, c_})
      if (layout != nullptr) cublasLtMatrixLayoutDestroy(layout);
    if (operation_ != nullptr) cublasLtMatmulDescDestroy(operation_);
  }
  Descriptors(const Descriptors&) = delete;
  Descriptors& operator=(const Descriptors&) = delete;

  cublasStatus_t queue(const Context& ctx, cublasLtHandle_t handle, const GemmShape& shape,
                       const GemmOperands& operands, const cublasLtMatmulAlgo_t& algorithm) const {
    const float alpha = 1.0F, beta = shape.accumulate ? 1.0F : 0.0F;
    const void* addend = operands.addend != nullptr ? operands.addend : operands.c;
    return cublasLtMatmul(handle, operation_, &alpha, operands.a, a_, operands.b, b_, &beta, addend, c_, operands.c, c_,
                          &algorithm, ctx.workspace, static_cast<std::size_t>(ctx.workspace_bytes),
                          static_cast<cudaStream_t>(ctx.stream));
  }

  /// What the library proposes, best guess first; nothing when it cannot.
  std::vector<cublasLtMatmulHeuristicResult_t> candidates(const Context& ctx, cublasLtHandle_t handle,
                                                          const GemmShape& shape, int wanted) const {
    cublasLtMatmulPreference_t preference = nullptr;
    check(cublasLtMatmulPreferenceCreate(&preference), "cublasLtMatmulPreferenceCreate");
    const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
      check(cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof value),
            "cublasLtMatmulPreferenceSetAttribute");
    };
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<std::uint64_t>(ctx.workspace_bytes));
    for (const auto attribute :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
      prefer(attribute, static_cast<std::uint32_t>(shape.alignment));
    // As usable() wants it of choices that a file brings.
    if (dtype_size(shape.out) == 2)
      prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
             static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
    std::vector<cublasLtMatmulHeuristicResult_t> results(static_cast<std::size_t>(wanted));
    int found = 0;
    const cublasStatus_t status =
        cublasLtMatmulAlgoGetHeuristic(handle, operation_, a_, b_, c_, c_, preference, wanted, results.data(), &found);
    cublasLtMatmulPreferenceDestroy(preference);
    results.resize(status == CUBLAS_STATUS_SUCCESS ? static_cast<std::size_t>(found) : 0);
    return results;
  }

 private:
  template <class T>
  void set(cublasLtMatmulDescAttributes_t attribute, const T& value) {
    check(cublasLtMatmulDescSetAttribute(operation_, attribute, &value, sizeof value),
          "cublasLtMatmulDescSetAttribute");
  }
  static cublasLtMatrixLayout_t layout(Dtype dtype, std::int64_t rows, std::int64_t cols, std::int64_t stride) {
    cublasLtMatrixLayout_t made = nullptr;
    check(cublasLtMatrixLayoutCreate(&made, data_type(dtype), static_cast<std::uint64_t>(rows),
                                     static_cast<std::uint64_t>(cols), stride),
          "cublasLtMatrixLayoutCreate");
    return made;
  }

  cublasLtMatmulDesc_t operation_ = nullptr;
  cublasLtMatrixLayout_t a_ = nullptr, b_ = nullptr, c_ = nullptr;
};

/// Median milliseconds of what `queue` queues; it has run once before.
float median_ms(const Context& ctx, const std::function<void()>& queue) {
  const auto stream = static_cast<cudaStream_t>(ctx.stream);
  std::vector<cudaEvent_t> marks(kTimedRuns + 1);
  for (cudaEvent_t& mark : marks) check_cuda(cudaEventCreate(&mark), "cudaEventCreate");
  check_cuda(cudaEventRecord(marks.front(), stream), "cudaEventRecord");
  for (int i = 0; i < kTimedRuns; ++i) {
    queue();
    check_cuda(cudaEventRecord(marks[static_cast<std::size_t>(i) + 1], stream), "cudaEventRecord");
  }
  check_cuda(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  std::vector<float> times(kTimedRuns);
  for (int i = 0; i < kTimedRuns; ++i)
    check_cuda(cudaEventElapsedTime(&times[static_cast<std::size_t>(i)], marks[static_cast<std::size_t>(i)],
                                    marks[static_cast<std::size_t>(i) + 1]),
               "cudaEventElapsedTime");
  for (cudaEvent_t mark : marks) cudaEventDestroy(mark);
  std::nth_element(times.begin(), times.begin() + kTimedRuns / 2, times.end());
  return times[kTimedRuns / 2];
}

/// Median milliseconds of a candidate; infinity when it cannot run.
float time_candidate(const Context& ctx, cublasLtHandle_t handle, const Descriptors& descriptors,
                     const GemmShape& shape, const GemmOperands& operands, const cublasLtMatmulAlgo_t& algorithm) {
  const auto queue = [&] { return descriptors.queue(ctx, handle, shape, operands, algorithm); };
  if (queue() != CUBLAS_STATUS_SUCCESS) return std::numeric_limits<float>::infinity();
  return median_ms(ctx, [&] { check(queue(), "cublasLtMatmul"); });
}

/// Mean milliseconds of a run among many, back to back, after as many; `once_ms`: about what one takes.
float sustained_ms(const Context& ctx, float once_ms, const std::function<void()>& queue) {
  const int runs = static_cast<int>(kSustainedMs / once_ms) + 1;
  Event start(ctx.device), end(ctx.device);
  for (int i = 0; i < runs; ++i) queue();
  start.record(ctx);
  for (int i = 0; i < runs; ++i) queue();
  end.record(ctx);
  synchronize(ctx);
  return static_cast<float>(end.milliseconds_since(start)) / static_cast<float>(runs);
}

struct Timed {
  cublasLtMatmulAlgo_t algorithm{};
  float ms = std::numeric_limits<float>::infinity();  // median of a few runs
};

/// The fastest of the candidates for a card that has been at work for a while.
Timed fastest(const Context& ctx, cublasLtHandle_t handle, const Descriptors& descriptors, const GemmShape& shape,
              const GemmOperands& operands, const std::vector<cublasLtMatmulHeuristicResult_t>& candidates) {
  std::vector<Timed> timed;
  timed.reserve(candidates.size());
  for (const auto& candidate : candidates)
    timed.push_back({candidate.algo, time_candidate(ctx, handle, descriptors, shape, operands, candidate.algo)});
  const auto faster = [](const Timed& a, const Timed& b) { return a.ms < b.ms; };
  std::stable_sort(timed.begin(), timed.end(), faster);
  const float limit = timed.front().ms * kNearlyAsFast;
  const auto end = std::find_if(timed.begin(), timed.end(), [&](const Timed& t) { return !(t.ms <= limit); });
  const float least = timed.front().ms;
  if (least < kWorthwhileMs || std::isinf(least) || end - timed.begin() < 2) return timed.front();
  Timed best;
  float best_sustained = std::numeric_limits<float>::infinity();
  for (auto it = timed.begin(); it != end; ++it) {
    const float sustained = sustained_ms(
        ctx, it->ms, [&] { check(descriptors.queue(ctx, handle, shape, operands, it->algorithm), "cublasLtMatmul"); });
    if (sustained >= best_sustained) continue;
    best_sustained = sustained;
    best = *it;
  }
  return best;
}

std::string shape_text(const GemmShape& s) {
  return fmt::format("{}x{}x{}:{},{},{}:{}{}:{}>{}:{}{}:{}", s.m, s.n, s.k, s.lda, s.ldb, s.ldc,
                     s.transpose_a ? 't' : 'n', s.transpose_b ? 't' : 'n', dtype_name(s.in), dtype_name(s.out),
                     s.accumulate ? '+' : '=', static_cast<char>(s.epilogue), s.alignment);
}

bool parse_shape(const std::string& text, GemmShape& s) {
  long long m = 0, n = 0, k = 0, lda = 0, ldb = 0, ldc = 0;
  char ta = 0, tb = 0, in[16] = {}, out[16] = {}, accumulate = 0, letter = 0;
  int alignment = 0;
  if (std::sscanf(text.c_str(), "%lldx%lldx%lld:%lld,%lld,%lld:%c%c:%15[a-z0-9]>%15[a-z0-9]:%c%c:%d", &m, &n, &k, &lda,
                  &ldb, &ldc, &ta, &tb, in, out, &accumulate, &letter, &alignment) != 13)
    return false;
  GemmEpilogue epilogue = GemmEpilogue::none;
  if (!parse_epilogue(letter, epilogue)) return false;
  s = {m,
       n,
       k,
       lda,
       ldb,
       ldc,
       ta == 't',
       tb == 't',
       dtype_from_name(in),
       dtype_from_name(out),
       accumulate == '+',
       epilogue,
       alignment};
  return true;
}

std::string hex_of(const cublasLtMatmulAlgo_t& algorithm) {
  std::string hex;
  for (const std::uint64_t word : algorithm.data) hex += fmt::format("{:016x}", word);
  return hex;
}

bool parse_hex(const std::string& hex, cublasLtMatmulAlgo_t& algorithm) {
  constexpr std::size_t kWords = std::size(decltype(algorithm.data){});
  if (hex.size() != kWords * 16) return false;
  for (std::size_t i = 0; i < kWords; ++i) {
    unsigned long long word = 0;
    if (std::sscanf(hex.substr(i * 16, 16).c_str(), "%16llx", &word) != 1) return false;
    algorithm.data[i] = word;
  }
  return true;
}

/// False for what is no algorithm, and for one that adds the parts of a sum that is split over k in the type of the
/// result where that has 16 bits.
bool usable(const cublasLtMatmulAlgo_t& algorithm, Dtype result) {
  std::uint32_t scheme = CUBLASLT_REDUCTION_SCHEME_NONE;
  std::size_t written = 0;
  if (cublasLtMatmulAlgoConfigGetAttribute(&algorithm, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &scheme, sizeof scheme,
                                           &written) != CUBLAS_STATUS_SUCCESS)
    return false;
  constexpr std::uint32_t kComputeType = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
  return dtype_size(result) > 2 || (scheme & ~kComputeType) == 0;
}

}  // namespace

const GemmTable::Choice& GemmTable::choose(const Context& ctx, cublasLtHandle_t handle, const GemmShape& shape,
                                           const GemmOperands& operands, const Separate* separate) {
  const auto known = choices_.find(shape);
  const bool tune = tuning_ == GemmTuning::time;
  if (known != choices_.end() && (known->second.tuned || !tune)) return known->second;
  const Descriptors descriptors(shape, operands);
  const auto candidates = descriptors.candidates(ctx, handle, shape, tuning_ == GemmTuning::off ? 1 : kCandidates);
  if (candidates.empty()) {
    if (separate == nullptr)
      fail(ExitCode::other, "cuBLASLt has no algorithm for m {} n {} k {} {} -> {}", shape.m, shape.n, shape.k,
           dtype_name(shape.in), dtype_name(shape.out));
    return choices_[shape] = {.tuned = tune, .separate = true};
  }
  Choice choice{.algorithm = candidates.front().algo, .tuned = tune};
  if (tuning_ == GemmTuning::off) return choices_[shape] = choice;
  const Timed best = fastest(ctx, handle, descriptors, shape, operands, candidates);
  if (tune) choice.algorithm = best.algorithm;
  if (tune && separate != nullptr) {
    (*separate)();  // the GEMM without epilogue is chosen here
    choice.separate = median_ms(ctx, *separate) < best.ms;
  }
  return choices_[shape] = choice;
}

void GemmTable::run(const Context& ctx, cublasLtHandle_t handle, const GemmShape& shape, const GemmOperands& operands) {
  const Choice choice = choose(ctx, handle, shape, operands, nullptr);
  const Descriptors descriptors(shape, operands);
  check(descriptors.queue(ctx, handle, shape, operands, choice.algorithm), "cublasLtMatmul");
}

bool GemmTable::run_unless_slower(const Context& ctx, cublasLtHandle_t handle, const GemmShape& shape,
                                  const GemmOperands& operands, const Separate& separate) {
  if (choose(ctx, handle, shape, operands, &separate).separate) return false;
  run(ctx, handle, shape, operands);
  return true;
}

std::string GemmTable::text() const {
  std::string text;
  for (const auto& [shape, choice] : choices_)
    if (choice.tuned)
      text += fmt::format("{} {} {}\n", environment_, shape_text(shape),
                          choice.separate ? std::string(kSeparate) : hex_of(choice.algorithm));
  return text;
}

std::int64_t GemmTable::use(const std::string& text) {
  std::istringstream lines(text);
  std::int64_t taken = 0;
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string card, version, shape_word, hex;
    words >> card >> version >> shape_word >> hex;
    GemmShape shape;
    Choice choice{.tuned = true, .separate = hex == kSeparate};
    if (fmt::format("{} {}", card, version) != environment_ || !parse_shape(shape_word, shape)) continue;
    if (!choice.separate && (!parse_hex(hex, choice.algorithm) || !usable(choice.algorithm, shape.out))) continue;
    choices_[shape] = choice;
    ++taken;
  }
  return taken;
}

void set_gemm_tuning(const Context& ctx, GemmTuning tuning) {
  if (ctx.backend != nullptr) ctx.backend->gemms.set_tuning(tuning);
}

std::string gemm_choices(const Context& ctx) {
  return ctx.backend != nullptr ? ctx.backend->gemms.text() : std::string();
}

std::int64_t use_gemm_choices(const Context& ctx, const std::string& text) {
  return ctx.backend != nullptr ? ctx.backend->gemms.use(text) : 0;
}

}  // namespace trainer
