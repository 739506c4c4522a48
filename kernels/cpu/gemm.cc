#include "kernels/cpu/gemm.h"

#include <cblas.h>

#include <limits>

namespace trainer::ops::cpu {
namespace {

blasint to_blasint(std::int64_t size) {
  TRAINER_CHECK(size <= std::numeric_limits<blasint>::max(), "matrix size {} is beyond what OpenBLAS takes", size);
  return static_cast<blasint>(size);
}

template <class A>
std::int64_t logical_rows(const Matrix<A>& m) {
  return m.transposed ? m.cols : m.rows;
}
template <class A>
std::int64_t logical_cols(const Matrix<A>& m) {
  return m.transposed ? m.rows : m.cols;
}

}  // namespace

template <class A>
void gemm(A alpha, std::type_identity_t<Matrix<const A>> a, std::type_identity_t<Matrix<const A>> b,
          std::type_identity_t<A> beta, Matrix<A> c) {
  const std::int64_t inner = logical_cols(a);
  TRAINER_CHECK(!c.transposed && logical_rows(a) == c.rows && logical_cols(b) == c.cols && logical_rows(b) == inner,
                "product of [{}, {}] and [{}, {}] into [{}, {}]", logical_rows(a), inner, logical_rows(b),
                logical_cols(b), c.rows, c.cols);
  if (c.rows == 0 || c.cols == 0) return;
  const auto multiply = [&](auto* blas) {
    blas(CblasRowMajor, a.transposed ? CblasTrans : CblasNoTrans, b.transposed ? CblasTrans : CblasNoTrans,
         to_blasint(c.rows), to_blasint(c.cols), to_blasint(inner), alpha, a.data, to_blasint(a.stride), b.data,
         to_blasint(b.stride), beta, c.data, to_blasint(c.stride));
  };
  if constexpr (std::is_same_v<A, double>)
    multiply(cblas_dgemm);
  else
    multiply(cblas_sgemm);
}

template void gemm<float>(float, Matrix<const float>, Matrix<const float>, float, Matrix<float>);
template void gemm<double>(double, Matrix<const double>, Matrix<const double>, double, Matrix<double>);

}  // namespace trainer::ops::cpu
