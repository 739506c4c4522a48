// Rotary position embedding, in place.
#include "kernels/cuda/common.cuh"

namespace trainer::ops::cuda {
namespace {

constexpr int kHeadsAtOnce = 4;  // share the angles in registers

template <class T>
struct Rope {
  View<T> x;
  const int32_t* positions;
  View<float> table;  // [P, 2 half]
  int64_t tokens;
  int heads, head_dim, half;
  float direction;
};

/// A thread rotates N pairs of up to kHeadsAtOnce heads of one token.
template <class T, int N>
__global__ void __launch_bounds__(256) rope_kernel(Rope<T> p) {
  const int vectors = p.half / N;
  const int head_groups = (p.heads + kHeadsAtOnce - 1) / kHeadsAtOnce;
  const int per_token = vectors * head_groups;
  const int64_t item = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64_t token =
      item <= 0xffffffff ? static_cast<uint32_t>(item) / static_cast<uint32_t>(per_token) : item / per_token;
  if (token >= p.tokens) return;
  const int within = static_cast<int>(item - token * per_token);
  const int first_head = within / vectors * kHeadsAtOnce;
  const int i = within % vectors * N;

  Packed<T, N> first[kHeadsAtOnce], second[kHeadsAtOnce];
  T* row = p.x.at(token, 0);
#pragma unroll
  for (int h = 0; h < kHeadsAtOnce; ++h) {
    if (first_head + h >= p.heads) break;
    const T* head = row + (first_head + h) * p.head_dim;
    first[h] = Packed<T, N>::load(head + i);
    second[h] = Packed<T, N>::load(head + p.half + i);
  }
  float cosine[N], sine[N];
  const float* angles = p.table.at(p.positions[token], 0);
  load_vector<N>(angles + i, cosine);
  load_vector<N>(angles + p.half + i, sine);
#pragma unroll
  for (int j = 0; j < N; ++j) sine[j] *= p.direction;
#pragma unroll
  for (int h = 0; h < kHeadsAtOnce; ++h) {
    if (first_head + h >= p.heads) break;
    float a[N], b[N];
    first[h].unpack(a);
    second[h].unpack(b);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const float x = a[j], y = b[j];
      a[j] = x * cosine[j] - y * sine[j];
      b[j] = y * cosine[j] + x * sine[j];
    }
    T* head = row + (first_head + h) * p.head_dim;
    store_vector<N>(head + i, a);
    store_vector<N>(head + p.half + i, b);
  }
}

template <class T, int N>
void launch(const Context& ctx, const Rope<T>& p) {
  const int64_t items = p.tokens * (p.half / N) * ceil_div(p.heads, kHeadsAtOnce);
  rope_kernel<T, N><<<grid_size(ceil_div(items, 256)), 256, 0, stream_of(ctx)>>>(p);
  check_cuda(cudaGetLastError(), "rope");
}

}  // namespace

/// Positions must lie in the table: the host checked them when it made the batch; here nobody can.
void rope(const Context& ctx, const RopeArgs& args) {
  const int64_t tokens = args.x.rows, half = args.cos_sin.cols / 2;
  TRAINER_CHECK(args.heads > 0 && args.x.cols % args.heads == 0, "rope: {} columns in {} heads", args.x.cols,
                args.heads);
  const int64_t head_dim = args.x.cols / args.heads;
  check_shape(args.positions, "rope: positions", Dtype::i32, 1, tokens);
  check_shape(args.cos_sin, "rope: cos_sin", accumulator_dtype(args.x.dtype), args.cos_sin.rows, 2 * half);
  TRAINER_CHECK(2 * half <= head_dim, "rope: rotates {} of {} elements", 2 * half, head_dim);
  if (tokens == 0 || half == 0) return;
  visit_float(args.x.dtype, "rope", [&](auto tag) {
    using T = typename decltype(tag)::type;
    const Rope<T> p{view_of<T>(args.x),           args.positions.as<int32_t>(),
                    view_of<float>(args.cos_sin), tokens,
                    static_cast<int>(args.heads), static_cast<int>(head_dim),
                    static_cast<int>(half),       args.inverse ? -1.0f : 1.0f};
    constexpr int N = kVector<T>;
    const bool aligned = all_aligned16(args.x, args.cos_sin);
    if (aligned && half % N == 0 && head_dim % N == 0)
      launch<T, N>(ctx, p);
    else if (aligned && half % (N / 2) == 0 && head_dim % (N / 2) == 0)  // 12 of 96 elements, say
      launch<T, N / 2>(ctx, p);
    else
      launch<T, 1>(ctx, p);
  });
}

}  // namespace trainer::ops::cuda
