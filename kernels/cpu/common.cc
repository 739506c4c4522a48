#include "kernels/cpu/common.h"

namespace trainer::ops::cpu {

void check_shape(const Tensor& tensor, const char* name, Dtype dtype, std::int64_t rows, std::int64_t cols) {
  TRAINER_CHECK(tensor.dtype == dtype && tensor.rows == rows && tensor.cols == cols,
                "{} is {} [{}, {}], expected {} [{}, {}]", name, dtype_name(tensor.dtype), tensor.rows, tensor.cols,
                dtype_name(dtype), rows, cols);
}

}  // namespace trainer::ops::cpu
