// Products of 16 x 16 tiles on the tensor cores, one warp at a time, with what the attention kernels must know and
// nvcuda::wmma does not say: which element of a tile each thread holds. Two kinds of units with one interface:
// AmpereMma (sm_80 and newer: mma.m16n8k16, bf16 and fp16) and VoltaMma (sm_70 and newer: mma.m8n8k4, fp16). Layouts:
// the PTX ISA's chapter on warp-level matrix instructions.
//
// In both a thread holds eight elements of an accumulator tile, in two of its rows ("slots"): element e lies in slot
// e / 2 % 2, and elements e and e + 1 (e even) are neighbours in a row. Four threads share a row.
#pragma once
#include <type_traits>

#include "kernels/cuda/common.cuh"

namespace trainer::ops::cuda {

/// What this pass of the compiler makes code for; kernels for other units are left empty.
#if defined(__CUDA_ARCH__)
constexpr int kArchitecture = __CUDA_ARCH__;
#else
constexpr int kArchitecture = 0;
#endif

/// 16 x 16 sums in float32, as the thread of any kind of unit holds them.
struct MmaTile {
  float x[8];
  __device__ void clear() {
#pragma unroll
    for (float& e : x) e = 0.0F;
  }
};

__device__ inline int slot_of(int element) {
  return element >> 1 & 1;
}
__device__ inline int lane_index() {
  return static_cast<int>(threadIdx.x) % kWarp;
}
__device__ inline uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

/// sm_80 and newer.
template <class T>
struct AmpereMma {
  using Element = T;
  static constexpr bool kCompiled = kArchitecture >= 800;
  static constexpr int kColumnStep = 8;             // from element 0 to element 4
  static constexpr int kRowBit0 = 1, kRowBit1 = 2;  // bits of the lane that do not change the row

  struct A {
    uint32_t x[4];
  };
  struct B {
    uint32_t x[4];
  };
  using TransposedB = B;

  __device__ static int row(int slot) { return lane_index() / 4 + 8 * slot; }
  __device__ static int column() { return lane_index() % 4 * 2; }

  /// From [row][k] in shared memory; rows are `stride` elements apart and start at multiples of 16 bytes.
  __device__ static A load_a(const T* tile, int stride) {
    const int matrix = lane_index() / 8, r = lane_index() % 8;
    A a;
    load_matrices(a.x, tile + ((matrix & 1) * 8 + r) * stride + (matrix >> 1) * 8);
    return a;
  }
  /// From [n][k].
  __device__ static B load_b(const T* tile, int stride) {
    const int matrix = lane_index() / 8, r = lane_index() % 8;
    B b;
    load_matrices(b.x, tile + ((matrix >> 1) * 8 + r) * stride + (matrix & 1) * 8);
    return b;
  }
  /// From [k][n].
  __device__ static TransposedB load_b_transposed(const T* tile, int stride) {
    const int matrix = lane_index() / 8, r = lane_index() % 8;
    TransposedB b;
    const uint32_t from = shared_address(tile + ((matrix & 1) * 8 + r) * stride + (matrix >> 1) * 8);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(b.x[0]), "=r"(b.x[1]), "=r"(b.x[2]), "=r"(b.x[3])
                 : "r"(from)
                 : "memory");
    return b;
  }
  /// Sums, rounded to T, as the left operand of the next product.
  __device__ static A to_a(const MmaTile& c) {
    A a;
#pragma unroll
    for (int i = 0; i < 4; ++i) a.x[i] = pack_word(c.x[2 * i], c.x[2 * i + 1], TypeTag<T>{});
    return a;
  }
  /// c += a b^T for b [n][k].
  __device__ static void multiply(MmaTile& c, const A& a, const B& b) {
    multiply_half(c.x, a, b.x);
    multiply_half(c.x + 4, a, b.x + 2);
  }

 private:
  __device__ static void load_matrices(uint32_t (&x)[4], const T* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(shared_address(row))
                 : "memory");
  }
  /// Eight columns.
  __device__ static void multiply_half(float* c, const A& a, const uint32_t* b) {
    if constexpr (std::is_same_v<T, bf16>)
      asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
          "{%0, %1, %2, %3};"
          : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
          : "r"(a.x[0]), "r"(a.x[1]), "r"(a.x[2]), "r"(a.x[3]), "r"(b[0]), "r"(b[1]));
    else
      asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
          "{%0, %1, %2, %3};"
          : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
          : "r"(a.x[0]), "r"(a.x[1]), "r"(a.x[2]), "r"(a.x[3]), "r"(b[0]), "r"(b[1]));
  }
};

/// sm_70 and newer; the library uses it below sm_80 only. The instruction gives each quarter of the warp (lanes 4 g ..
/// 4 g + 3 and 16 + 4 g .. 16 + 4 g + 3) an 8 x 8 product over four k; the quarters are laid out two by two.
struct VoltaMma {
  using Element = f16;
  static constexpr bool kCompiled = kArchitecture < 800;
  static constexpr int kColumnStep = 4;
  static constexpr int kRowBit0 = 2, kRowBit1 = 4;

  /// Four steps of four k, two words each.
  struct A {
    uint2 x[4];
  };
  struct B {
    uint2 x[4];
  };
  struct TransposedB {
    uint2 x[4];
  };

  __device__ static int row(int slot) {
    const int lane = lane_index();
    return (lane & 1) + 2 * slot + (lane >> 4) * 4 + (lane >> 3 & 1) * 8;
  }
  __device__ static int column() { return (lane_index() & 2) + (lane_index() >> 2 & 1) * 8; }

  __device__ static A load_a(const f16* tile, int stride) {
    const int lane = lane_index();
    const f16* from = tile + ((lane & 3) + (lane >> 4) * 4 + (lane >> 3 & 1) * 8) * stride;
    A a;
#pragma unroll
    for (int k = 0; k < 4; ++k) a.x[k] = *reinterpret_cast<const uint2*>(from + 4 * k);
    return a;
  }
  __device__ static B load_b(const f16* tile, int stride) {
    const int lane = lane_index();
    const f16* from = tile + ((lane & 3) + (lane >> 4) * 4 + (lane >> 2 & 1) * 8) * stride;
    B b;
#pragma unroll
    for (int k = 0; k < 4; ++k) b.x[k] = *reinterpret_cast<const uint2*>(from + 4 * k);
    return b;
  }
  __device__ static TransposedB load_b_transposed(const f16* tile, int stride) {
    const int lane = lane_index();
    const f16* from = tile + (lane & 3) * stride + (lane >> 4) * 4 + (lane >> 2 & 1) * 8;
    TransposedB b;
#pragma unroll
    for (int k = 0; k < 4; ++k) b.x[k] = *reinterpret_cast<const uint2*>(from + 4 * k * stride);
    return b;
  }
  /// A thread needs four neighbouring columns of one row; two threads hold two columns each, for two rows.
  __device__ static A to_a(const MmaTile& c) {
    const int lane = lane_index();
    uint32_t words[4];  // of slot w % 2, columns 4 (w / 2) of the quarter
#pragma unroll
    for (int w = 0; w < 4; ++w) words[w] = pack_word(c.x[2 * w], c.x[2 * w + 1], TypeTag<f16>{});
    A a;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const int from = (lane & ~7) + (k >> 1) * 4 + (lane & 1);
      const bool second_slot = (lane & 2) != 0;
      const uint32_t* pair = words + (k & 1) * 2;
      const uint32_t left[2] = {__shfl_sync(~0U, pair[0], from), __shfl_sync(~0U, pair[1], from)};
      const uint32_t right[2] = {__shfl_sync(~0U, pair[0], from + 2), __shfl_sync(~0U, pair[1], from + 2)};
      a.x[k] = second_slot ? make_uint2(left[1], right[1]) : make_uint2(left[0], right[0]);
    }
    return a;
  }
  __device__ static void multiply(MmaTile& c, const A& a, const B& b) {
#pragma unroll
    for (int k = 0; k < 4; ++k)
      asm volatile(
          "mma.sync.aligned.m8n8k4.row.col.f32.f16.f16.f32 {%0, %1, %2, %3, %4, %5, %6, %7}, {%8, %9}, {%10, %11}, "
          "{%0, %1, %2, %3, %4, %5, %6, %7};"
          : "+f"(c.x[0]), "+f"(c.x[1]), "+f"(c.x[2]), "+f"(c.x[3]), "+f"(c.x[4]), "+f"(c.x[5]), "+f"(c.x[6]),
            "+f"(c.x[7])
          : "r"(a.x[k].x), "r"(a.x[k].y), "r"(b.x[k].x), "r"(b.x[k].y));
  }
  __device__ static void multiply(MmaTile& c, const A& a, const TransposedB& b) {
#pragma unroll
    for (int k = 0; k < 4; ++k)
      asm volatile(
          "mma.sync.aligned.m8n8k4.row.row.f32.f16.f16.f32 {%0, %1, %2, %3, %4, %5, %6, %7}, {%8, %9}, {%10, %11}, "
          "{%0, %1, %2, %3, %4, %5, %6, %7};"
          : "+f"(c.x[0]), "+f"(c.x[1]), "+f"(c.x[2]), "+f"(c.x[3]), "+f"(c.x[4]), "+f"(c.x[5]), "+f"(c.x[6]),
            "+f"(c.x[7])
          : "r"(a.x[k].x), "r"(a.x[k].y), "r"(b.x[k].x), "r"(b.x[k].y));
  }
};

/// Sum or maximum over the threads that share a row.
template <class M>
__device__ inline float row_sum(float x) {
  x += __shfl_xor_sync(~0U, x, M::kRowBit0);
  return x + __shfl_xor_sync(~0U, x, M::kRowBit1);
}
template <class M>
__device__ inline float row_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(~0U, x, M::kRowBit0));
  return fmaxf(x, __shfl_xor_sync(~0U, x, M::kRowBit1));
}
/// Whether this thread is the first of those that share its rows.
template <class M>
__device__ inline bool first_in_row() {
  return (lane_index() & (M::kRowBit0 | M::kRowBit1)) == 0;
}

/// 2^x to about two units in the last place; 0 for -infinity.
__device__ inline float power_of_two(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// ---- global to shared memory --------------------------------------------------------------------------------------
/// Sixteen bytes, or zeros when not `valid`, without waiting for them where the card can (sm_80).
__device__ inline void copy16_async(void* to, const void* from, bool valid) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(valid ? 16 : 0)
               : "memory");
#else
  *static_cast<uint4*>(to) = valid ? *static_cast<const uint4*>(from) : make_uint4(0, 0, 0, 0);
#endif
}
/// Waits for this thread's copies.
__device__ inline void wait_for_copies() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

}  // namespace trainer::ops::cuda
