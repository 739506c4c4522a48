// What the CUDA kernels share: element types, 16-byte accesses, views, launches, and sums within a warp or a block.
// Nothing here or in the kernels uses more than sm_70 and CUDA 11.8 have; bf16 is only converted, never computed with.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "core/runtime/cuda_check.h"
#include "core/runtime/divide.h"
#include "core/runtime/rng.h"
#include "kernels/ops.h"
#include "kernels/shapes.h"

namespace trainer {
template <>
struct DtypeOf<__nv_bfloat16> {
  static constexpr Dtype value = Dtype::bf16;
};
template <>
struct DtypeOf<__half> {
  static constexpr Dtype value = Dtype::f16;
};
}  // namespace trainer

namespace trainer::ops::cuda {

using std::int64_t;
using std::uint16_t;
using std::uint32_t;
using std::uint64_t;
using bf16 = __nv_bfloat16;
using f16 = __half;

constexpr int kWarp = 32;

// ---- host side ----------------------------------------------------------------------------------------------------
inline cudaStream_t stream_of(const Context& ctx) {
  return static_cast<cudaStream_t>(ctx.stream);
}

/// Multiprocessors of the context's card.
int sm_count(const Context& ctx);

/// `bytes` at the start of the context's scratch. Throws when the workspace is smaller.
void* workspace(const Context& ctx, int64_t bytes, const char* op);

/// A grid dimension. More than 2^31 - 1 blocks cannot be launched.
inline unsigned grid_size(int64_t blocks) {
  TRAINER_CHECK(blocks > 0 && blocks <= 0x7fffffff, "{} blocks", blocks);
  return static_cast<unsigned>(blocks);
}

template <class T>
struct TypeTag {
  using type = T;
};

[[noreturn]] void refuse_float64(const char* op);

/// Calls body(TypeTag<T>{}) for T float, bf16 or f16.
template <class Body>
void visit_float(Dtype dtype, const char* op, const Body& body) {
  switch (dtype) {
    case Dtype::f32:
      return body(TypeTag<float>{});
    case Dtype::bf16:
      return body(TypeTag<bf16>{});
    case Dtype::f16:
      return body(TypeTag<f16>{});
    case Dtype::f64:
      return refuse_float64(op);
    default:
      TRAINER_CHECK(false, "{}: {} is not a floating type", op, dtype_name(dtype));
  }
}

/// Whether 16-byte accesses that start at column 0 of a row are aligned in every row. Absent tensors are.
inline bool aligned16(const Tensor& tensor) {
  const auto address = reinterpret_cast<std::uintptr_t>(tensor.data);
  return address % 16 == 0 && (tensor.rows <= 1 || tensor.stride * dtype_size(tensor.dtype) % 16 == 0);
}
template <class... Tensors>
bool all_aligned16(const Tensors&... tensors) {
  return (aligned16(tensors) && ...);
}
template <class... Tensors>
bool all_contiguous(const Tensors&... tensors) {
  return (tensors.contiguous() && ...);
}

/// A tensor on the device side: at(row, col).
template <class T>
struct View {
  T* data = nullptr;
  int64_t stride = 0;
  __device__ T* at(int64_t row, int64_t col) const { return data + row * stride + col; }
};
template <class T>
View<T> view_of(const Tensor& tensor) {
  if (!tensor) return {};
  return {tensor.as<T>(), tensor.stride};
}

// ---- elements -----------------------------------------------------------------------------------------------------
/// What an element is computed in.
template <class T>
struct WidenedType {
  using type = float;
};
template <>
struct WidenedType<double> {
  using type = double;
};
template <class T>
using Widened = typename WidenedType<T>::type;

/// Elements in one 16-byte access.
template <class T>
constexpr int kVector = 16 / static_cast<int>(sizeof(T));

__device__ inline float widen(float x) {
  return x;
}
__device__ inline double widen(double x) {
  return x;
}
__device__ inline float widen(bf16 x) {
  return __bfloat162float(x);
}
__device__ inline float widen(f16 x) {
  return __half2float(x);
}

/// Rounds to nearest even.
template <class T>
__device__ inline T narrow(Widened<T> x) {
  return static_cast<T>(x);
}
template <>
__device__ inline bf16 narrow<bf16>(float x) {
  return __float2bfloat16_rn(x);
}
template <>
__device__ inline f16 narrow<f16>(float x) {
  return __float2half_rn(x);
}

/// Two 16-bit elements in a word, the first in the lower half.
__device__ inline void unpack_word(uint32_t word, float& first, float& second, TypeTag<bf16>) {
  first = __uint_as_float(word << 16);
  second = __uint_as_float(word & 0xffff0000u);
}
__device__ inline void unpack_word(uint32_t word, float& first, float& second, TypeTag<f16>) {
  const float2 both = __half22float2(*reinterpret_cast<const __half2*>(&word));
  first = both.x;
  second = both.y;
}
__device__ inline uint32_t pack_word(float first, float second, TypeTag<bf16>) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  uint32_t word;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(second), "f"(first));
  return word;
#else
  // CUDA 11 has __bfloat16_as_ushort only for sm_80 and newer.
  const bf16 pair[2] = {__float2bfloat16_rn(first), __float2bfloat16_rn(second)};
  uint32_t word;
  memcpy(&word, pair, sizeof word);
  return word;
#endif
}
__device__ inline uint32_t pack_word(float first, float second, TypeTag<f16>) {
  const __half2 both = __floats2half2_rn(first, second);
  return *reinterpret_cast<const uint32_t*>(&both);
}

/// N neighbouring elements as they lie in memory: one access of up to 16 bytes, or several of 16. The address is a
/// multiple of min(16, N * sizeof(T)).
template <class T, int N>
struct Packed {
  static constexpr int kWords = N * static_cast<int>(sizeof(T)) / 4;
  uint32_t words[kWords];

  __device__ static Packed load(const T* from) {
    Packed p;
    if constexpr (kWords % 4 == 0) {
#pragma unroll
      for (int i = 0; i < kWords / 4; ++i) {
        const uint4 quad = reinterpret_cast<const uint4*>(from)[i];
        p.words[4 * i] = quad.x, p.words[4 * i + 1] = quad.y, p.words[4 * i + 2] = quad.z, p.words[4 * i + 3] = quad.w;
      }
    } else if constexpr (kWords == 2) {
      const uint2 pair = *reinterpret_cast<const uint2*>(from);
      p.words[0] = pair.x, p.words[1] = pair.y;
    } else {
      static_assert(kWords == 1, "4, 8 or a multiple of 16 bytes");
      p.words[0] = *reinterpret_cast<const uint32_t*>(from);
    }
    return p;
  }
  __device__ void store(T* to) const {
    if constexpr (kWords % 4 == 0) {
#pragma unroll
      for (int i = 0; i < kWords / 4; ++i)
        reinterpret_cast<uint4*>(to)[i] =
            make_uint4(words[4 * i], words[4 * i + 1], words[4 * i + 2], words[4 * i + 3]);
    } else if constexpr (kWords == 2) {
      *reinterpret_cast<uint2*>(to) = make_uint2(words[0], words[1]);
    } else {
      *reinterpret_cast<uint32_t*>(to) = words[0];
    }
  }
  __device__ void unpack(Widened<T> (&x)[N]) const {
    if constexpr (sizeof(T) == 2) {
#pragma unroll
      for (int i = 0; i < kWords; ++i) unpack_word(words[i], x[2 * i], x[2 * i + 1], TypeTag<T>{});
    } else if constexpr (sizeof(T) == 4) {
#pragma unroll
      for (int i = 0; i < N; ++i) x[i] = __uint_as_float(words[i]);
    } else {
#pragma unroll
      for (int i = 0; i < N; ++i)
        x[i] = __hiloint2double(static_cast<int>(words[2 * i + 1]), static_cast<int>(words[2 * i]));
    }
  }
  __device__ static Packed pack(const Widened<T> (&x)[N]) {
    Packed p;
    if constexpr (sizeof(T) == 2) {
#pragma unroll
      for (int i = 0; i < kWords; ++i) p.words[i] = pack_word(x[2 * i], x[2 * i + 1], TypeTag<T>{});
    } else if constexpr (sizeof(T) == 4) {
#pragma unroll
      for (int i = 0; i < N; ++i) p.words[i] = __float_as_uint(x[i]);
    } else {
#pragma unroll
      for (int i = 0; i < N; ++i) {
        p.words[2 * i] = static_cast<uint32_t>(__double2loint(x[i]));
        p.words[2 * i + 1] = static_cast<uint32_t>(__double2hiint(x[i]));
      }
    }
    return p;
  }
};
template <class T>
struct Packed<T, 1> {
  T value;
  __device__ static Packed load(const T* from) { return {*from}; }
  __device__ void store(T* to) const { *to = value; }
  __device__ void unpack(Widened<T> (&x)[1]) const { x[0] = widen(value); }
  __device__ static Packed pack(const Widened<T> (&x)[1]) { return {narrow<T>(x[0])}; }
};

template <int N, class T>
__device__ inline void load_vector(const T* from, Widened<T> (&x)[N]) {
  Packed<T, N>::load(from).unpack(x);
}
template <int N, class T>
__device__ inline void store_vector(T* to, const Widened<T> (&x)[N]) {
  Packed<T, N>::pack(x).store(to);
}

// ---- random numbers -----------------------------------------------------------------------------------------------
/// Words first .. first + N of the stream `key` (core/runtime/rng.h: word e is e % 4 of block e / 4).
template <int N>
__device__ inline void random_words(uint64_t key, uint64_t first, uint32_t (&out)[N]) {
  if constexpr (N == 1) {
    const Philox4 block = philox(key, first >> 2);
    const unsigned lane = first & 3;
    out[0] = lane < 2 ? (lane == 0 ? block.v[0] : block.v[1]) : (lane == 2 ? block.v[2] : block.v[3]);
  } else {
    static_assert(N % 4 == 0, "whole blocks");
    uint32_t words[N + 4] = {};
    const unsigned shift = first & 3;
#pragma unroll
    for (int b = 0; b <= N / 4; ++b) {
      if (b == N / 4 && shift == 0) break;
      const Philox4 block = philox(key, (first >> 2) + b);
#pragma unroll
      for (int i = 0; i < 4; ++i) words[4 * b + i] = block.v[i];
    }
#pragma unroll
    for (int i = 0; i < N; ++i)
      out[i] = shift < 2 ? (shift == 0 ? words[i] : words[i + 1]) : (shift == 2 ? words[i + 2] : words[i + 3]);
  }
}

// ---- sums ---------------------------------------------------------------------------------------------------------
/// Sum over groups of `lanes` neighbouring lanes (a power of two); every lane of a group gets the same bits.
template <class A>
__device__ inline A lane_sum(A x, int lanes = kWarp) {
  for (int offset = lanes / 2; offset > 0; offset /= 2) x += __shfl_xor_sync(0xffffffffu, x, offset);
  return x;
}

/// Sum over the block in a fixed order; every thread gets it. Block sizes are multiples of 32.
template <class A>
__device__ inline A block_sum(A x) {
  __shared__ A parts[kWarp];
  __syncthreads();  // the sum before has been read
  x = lane_sum(x);
  if (threadIdx.x % kWarp == 0) parts[threadIdx.x / kWarp] = x;
  __syncthreads();
  A total = 0;
  for (unsigned w = 0; w < blockDim.x / kWarp; ++w) total += parts[w];
  return total;
}

/// out[c] (+)= sum over parts of partials[part][c]. The columns may belong to two vectors that lie side by side in
/// `partials`.
struct ColumnTargets {
  float* first = nullptr;
  int64_t first_cols = 0;
  float* second = nullptr;
  int64_t second_cols = 0;
  bool accumulate = true;
};
void add_partials(const Context& ctx, const float* partials, int64_t parts, const ColumnTargets& to);

}  // namespace trainer::ops::cuda
