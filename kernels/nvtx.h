// Ranges for NVIDIA's profilers, in the domain "trainer". Without a profiler attached a call is a test of a pointer; in
// a build without CUDA it is nothing (nvtx_none.cc).
#pragma once
#include <cstdint>

namespace trainer::nvtx {

/// Opens a range of this thread. `index` >= 0 is shown as its payload.
void push(const char* name, std::int64_t index);
void pop();

}  // namespace trainer::nvtx
