// A build without CUDA has no GEMM algorithms to choose from.
#include "kernels/gemm_choices.h"

namespace trainer {

void set_gemm_tuning(const Context&, GemmTuning) {}
std::string gemm_choices(const Context&) {
  return {};
}
std::int64_t use_gemm_choices(const Context&, const std::string&) {
  return 0;
}

}  // namespace trainer
