#include "kernels/nvtx.h"

namespace trainer::nvtx {

void push(const char* /*name*/, std::int64_t /*index*/) {}
void pop() {}

}  // namespace trainer::nvtx
