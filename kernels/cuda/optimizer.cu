// AdamW, SGD, and exact values of parameters in and out: one pass over all parts of a shard.
#include <algorithm>
#include <initializer_list>

#include "kernels/cuda/common.cuh"
#include "kernels/optimizer_bits.h"
#include "kernels/update_rule.h"

namespace trainer::ops::cuda {
namespace {

constexpr int kElements = 4;  // of a vector: 16 bytes of float32, so that a warp writes whole sectors
constexpr int kThreads = 256;

// ---- what a parameter is made of ----------------------------------------------------------------------------------
/// float32: the weight is the master.
struct PlainMaster {
  float* weight;
  template <int N>
  __device__ void load(int64_t i, float (&x)[N]) const {
    load_vector<N>(weight + i, x);
  }
  template <int N>
  __device__ void store(int64_t i, const float (&x)[N]) const {
    store_vector<N>(weight + i, x);
  }
};

template <int N>
__device__ inline void store_bits(uint16_t* to, const uint16_t (&bits)[N]) {
  if constexpr (N == 1) {
    *to = bits[0];
  } else {
    Packed<uint16_t, N> p;
#pragma unroll
    for (int i = 0; i < N / 2; ++i) p.words[i] = bits[2 * i] | static_cast<uint32_t>(bits[2 * i + 1]) << 16;
    p.store(to);
  }
}
template <int N>
__device__ inline void load_bits(const uint16_t* from, uint16_t (&bits)[N]) {
  if constexpr (N == 1) {
    bits[0] = *from;
  } else {
    const auto p = Packed<uint16_t, N>::load(from);
#pragma unroll
    for (int i = 0; i < N; ++i) bits[i] = static_cast<uint16_t>(p.words[i / 2] >> (16 * (i % 2)));
  }
}

/// bf16 weight and low bits: together a float32 master. Without `low` only the weight is written.
struct SplitMaster {
  uint16_t* weight;
  uint16_t* low;
  template <int N>
  __device__ void load(int64_t i, float (&x)[N]) const {
    uint16_t upper[N], lower[N];
    load_bits<N>(weight + i, upper);
    load_bits<N>(low + i, lower);
#pragma unroll
    for (int j = 0; j < N; ++j) x[j] = __uint_as_float(join_master(upper[j], lower[j]));
  }
  template <int N>
  __device__ void store(int64_t i, const float (&x)[N]) const {
    uint16_t upper[N], lower[N];
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const uint32_t bits = canonical_master_bits(__float_as_uint(x[j]));
      upper[j] = bf16_weight_of_master(bits);
      lower[j] = low_bits_of_master(bits);
    }
    store_bits<N>(weight + i, upper);
    if (low != nullptr) store_bits<N>(low + i, lower);
  }
};

/// fp16 weight, cast from a float32 master. Without `master` only the weight is written.
struct CastMaster {
  f16* weight;
  float* master;
  template <int N>
  __device__ void load(int64_t i, float (&x)[N]) const {
    load_vector<N>(master + i, x);
  }
  template <int N>
  __device__ void store(int64_t i, const float (&x)[N]) const {
    if (master != nullptr) store_vector<N>(master + i, x);
    store_vector<N>(weight + i, x);
  }
};

template <class Body>
void visit_master(const ShardTensors& shard, bool whole, const char* op, const Body& body) {
  const int64_t n = shard.weight.numel();
  switch (shard.weight.dtype) {
    case Dtype::f32:
      return body(PlainMaster{shard.weight.as<float>()});
    case Dtype::bf16:
      TRAINER_CHECK(shard.low ? shard.low.numel() == n : !whole, "{}: {} low parts for {} bf16 weights", op,
                    shard.low.numel(), n);
      return body(
          SplitMaster{static_cast<uint16_t*>(shard.weight.data), shard.low ? shard.low.as<uint16_t>() : nullptr});
    case Dtype::f16:
      TRAINER_CHECK(shard.master ? shard.master.numel() == n : !whole, "{}: {} masters for {} fp16 weights", op,
                    shard.master.numel(), n);
      return body(CastMaster{shard.weight.as<f16>(), shard.master ? shard.master.as<float>() : nullptr});
    case Dtype::f64:
      return refuse_float64(op);
    default:
      TRAINER_CHECK(false, "{}: weights cannot be {}", op, dtype_name(shard.weight.dtype));
  }
}

// ---- moments ------------------------------------------------------------------------------------------------------
struct PlainMoment {
  static constexpr bool kStochastic = false;
  float* data;
  template <int N>
  __device__ void load(int64_t i, float (&x)[N]) const {
    load_vector<N>(data + i, x);
  }
  template <int N>
  __device__ void store(int64_t i, const float (&x)[N], const uint32_t (&)[N], int) const {
    store_vector<N>(data + i, x);
  }
};

struct StochasticMoment {
  static constexpr bool kStochastic = true;
  uint16_t* data;
  template <int N>
  __device__ void load(int64_t i, float (&x)[N]) const {
    uint16_t bits[N];
    load_bits<N>(data + i, bits);
#pragma unroll
    for (int j = 0; j < N; ++j) x[j] = __uint_as_float(static_cast<uint32_t>(bits[j]) << 16);
  }
  /// The 16 bits of `noise` from `shift` on round element j.
  template <int N>
  __device__ void store(int64_t i, const float (&x)[N], const uint32_t (&noise)[N], int shift) const {
    uint16_t bits[N];
#pragma unroll
    for (int j = 0; j < N; ++j) bits[j] = bf16_stochastic(__float_as_uint(x[j]), (noise[j] >> shift) & 0xffffu);
    store_bits<N>(data + i, bits);
  }
};

/// Reads as zero and keeps nothing.
struct NoMoment {
  static constexpr bool kStochastic = false;
  template <int N>
  __device__ void load(int64_t, float (&x)[N]) const {
#pragma unroll
    for (int j = 0; j < N; ++j) x[j] = 0;
  }
  template <int N>
  __device__ void store(int64_t, const float (&)[N], const uint32_t (&)[N], int) const {}
};

template <class Body>
void visit_moment(const Tensor& moment, const Body& body) {
  switch (moment.dtype) {
    case Dtype::f32:
      return body(PlainMoment{moment.as<float>()});
    case Dtype::bf16:
      return body(StochasticMoment{static_cast<uint16_t*>(moment.data)});
    default:
      TRAINER_CHECK(false, "moments cannot be {}", dtype_name(moment.dtype));
  }
}

// ---- loops over runs ----------------------------------------------------------------------------------------------
/// Runs of elements cut into pieces of kThreads * kAhead vectors; the blocks take pieces in turn, through all runs, so
/// that small tensors cost no launches of their own. A run has single elements before `head`, vectors of kElements, and
/// single elements behind them; when its tensors are not aligned alike it has no vectors.
struct RunCuts {
  static constexpr int kRuns = RunTable<UpdateRun>::kCapacity;
  int64_t first[kRuns], n[kRuns], vectors[kRuns];
  int64_t end[kRuns];  // number of the piece behind the run's last
  int head[kRuns];
  int count = 0;
  int64_t pieces() const { return count == 0 ? 0 : end[count - 1]; }
};

/// Elements until all tensors are aligned to vectors, as parts of one shard are together; kElements when they never
/// are.
int aligned_head(int64_t first, const std::initializer_list<Tensor>& tensors) {
  int head = 0;
  const auto aligned = [&](const Tensor& t) {
    const int64_t size = dtype_size(t.dtype), boundary = std::min<int64_t>(16, kElements * size);
    return !t ||
           (static_cast<int64_t>(reinterpret_cast<std::uintptr_t>(t.data)) + (first + head) * size) % boundary == 0;
  };
  while (head < kElements && !std::all_of(tensors.begin(), tensors.end(), aligned)) ++head;
  return head;
}

void cut_run(RunCuts& cuts, int64_t first, int64_t n, int ahead, const std::initializer_list<Tensor>& tensors) {
  if (n == 0) return;
  const int head = aligned_head(first, tensors);
  const bool vectors = head < kElements && head <= n;
  const int r = cuts.count++;
  cuts.first[r] = first;
  cuts.n[r] = n;
  cuts.head[r] = vectors ? head : 0;
  cuts.vectors[r] = vectors ? (n - head) / kElements : 0;
  const int64_t elements = int64_t{kThreads} * ahead * kElements;  // of a piece
  cuts.end[r] = (r == 0 ? 0 : cuts.end[r - 1]) + std::max<int64_t>(ceil_div(n - cuts.head[r], elements), 1);
}

/// A Body has kAhead, `template <int N> struct Loaded`, load<N>(i) and store<N>(i, loaded) for elements i .. i + N. All
/// reads of a piece are under way before the first result is written.
template <class Body>
__device__ void treat_piece(const RunCuts& cuts, int r, int64_t piece, const Body& body) {
  constexpr int kAhead = Body::kAhead;
  const int64_t begin = cuts.first[r] + cuts.head[r], vectors = cuts.vectors[r];
  const int64_t v = piece * (kThreads * kAhead) + threadIdx.x;
  typename Body::template Loaded<kElements> ahead[kAhead];
#pragma unroll
  for (int a = 0; a < kAhead; ++a)
    if (v + a * kThreads < vectors) ahead[a] = body.template load<kElements>(begin + (v + a * kThreads) * kElements);
#pragma unroll
  for (int a = 0; a < kAhead; ++a)
    if (v + a * kThreads < vectors) body.template store<kElements>(begin + (v + a * kThreads) * kElements, ahead[a]);

  const auto one = [&](int64_t i) { body.template store<1>(i, body.template load<1>(i)); };
  if (piece == 0 && threadIdx.x < cuts.head[r]) one(cuts.first[r] + threadIdx.x);
  const int64_t behind = begin + max(vectors, piece * (kThreads * kAhead)) * kElements;
  const int64_t end = min(cuts.first[r] + cuts.n[r], begin + (piece + 1) * (kThreads * kAhead) * kElements);
  for (int64_t i = behind + threadIdx.x; i < end; i += kThreads) one(i);
}

/// body_of(r) makes the Body of run r, once for all pieces of it that this block takes.
template <class BodyOf>
__device__ void for_each_piece(const RunCuts& cuts, const BodyOf& body_of) {
  int64_t piece = blockIdx.x, start = 0;
  for (int r = 0; r < cuts.count; start = cuts.end[r++]) {
    if (piece >= cuts.end[r]) continue;
    const auto body = body_of(r);
    for (; piece < cuts.end[r]; piece += gridDim.x) treat_piece(cuts, r, piece - start, body);
  }
}

/// As many blocks as run at the same time: what a block computes once (AdamW's powers) is then cheap, and no part of
/// the work waits for a second round.
template <class Kernel>
unsigned resident_blocks(const Context& ctx, const RunCuts& cuts, Kernel kernel) {
  int resident = 0;
  check_cuda(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel, kThreads, 0), "optimizer");
  return grid_size(std::clamp<int64_t>(cuts.pieces(), 1, int64_t{resident} * sm_count(ctx)));
}

// ---- update rules -------------------------------------------------------------------------------------------------
template <class Rule, class Master, class M, class V>
struct Update {
  static constexpr int kAhead = M::kStochastic || V::kStochastic ? 1 : 2;  // random numbers take many registers
  Rule rule;
  Master master;
  M m;
  V v;
  const float* grad;
  uint64_t stream;  // of the rounding of this update
  UpdateRun run;

  template <int N>
  struct Loaded {
    float weights[N], grads[N], ms[N], vs[N];
  };
  template <int N>
  __device__ Loaded<N> load(int64_t i) const {
    Loaded<N> x;
    master.template load<N>(i, x.weights);
    load_vector<N>(grad + i, x.grads);
    m.template load<N>(i, x.ms);
    v.template load<N>(i, x.vs);
    return x;
  }
  template <int N>
  __device__ void store(int64_t i, const Loaded<N>& x) const {
    float weights[N], ms[N], vs[N];
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const Updated<float> updated = rule(x.weights[j], x.grads[j], x.ms[j], x.vs[j]);
      weights[j] = updated.weight;
      ms[j] = updated.m;
      vs[j] = updated.v;
    }
    uint32_t noise[N] = {};
    if constexpr (M::kStochastic || V::kStochastic) draw(i - run.first, noise);
    master.template store<N>(i, weights);
    m.template store<N>(i, ms, noise, 0);
    v.template store<N>(i, vs, noise, 16);
  }

 private:
  /// Noise for elements i .. i + N of the run, drawn at their global indices: neighbours unless a row ends among them.
  template <int N>
  __device__ void draw(int64_t i, uint32_t (&noise)[N]) const {
    const int64_t index = global_index(run, i);
    if (global_index(run, i + N - 1) == index + N - 1) return random_words<N>(stream, index, noise);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      uint32_t one[1];
      random_words<1>(stream, global_index(run, i + j), one);
      noise[j] = one[0];
    }
  }
};

template <class Rule, class Args, class Master, class M, class V>
__global__ void __launch_bounds__(kThreads)
    update_kernel(const __grid_constant__ Args args, Master master, M m, V v, const __grid_constant__ RunCuts cuts) {
  __shared__ Rule rule;  // the powers take long: one thread makes them for the block
  const UpdateState& state = *args.state;
  if (state.skipped != 0) return;
  if (threadIdx.x == 0) rule = Rule(args, state);
  __syncthreads();
  const auto* grad = static_cast<const float*>(args.shard.grad.data);
  for_each_piece(cuts, [&](int r) {
    const UpdateRun& run = args.runs.runs[r];
    return Update<Rule, Master, M, V>{
        rule.of(run), master, m, v, grad, rounding_stream(run.rounding_key, state.updates), run};
  });
}

template <class Rule, class Args, class Master, class M, class V>
void launch_update(const Context& ctx, Args args, const Master& master, const M& m, const V& v, const char* op) {
  const ShardTensors& s = args.shard;
  RunCuts cuts;
  RunTable<UpdateRun> runs;
  for (const UpdateRun& run : args.runs) {
    if (run.count == 0) continue;
    TRAINER_CHECK(run.first >= 0 && run.first + run.count <= s.weight.numel(), "{}: elements {}+{} of {}", op,
                  run.first, run.count, s.weight.numel());
    runs.add(run);
    cut_run(cuts, run.first, run.count, Update<Rule, Master, M, V>::kAhead,
            {s.weight, s.low, s.master, s.grad, s.m, s.v});
  }
  args.runs = runs;  // without empty ones, as `cuts`
  if (cuts.count == 0) return;
  const auto kernel = update_kernel<Rule, Args, Master, M, V>;
  kernel<<<resident_blocks(ctx, cuts, kernel), kThreads, 0, stream_of(ctx)>>>(args, master, m, v, cuts);
  check_cuda(cudaGetLastError(), op);
}

// ---- exact values -------------------------------------------------------------------------------------------------
template <class Master, class Out>
struct Read {
  static constexpr int kAhead = 2;
  Master master;
  Out* out;
  template <int N>
  struct Loaded {
    float x[N];
  };
  template <int N>
  __device__ Loaded<N> load(int64_t i) const {
    Loaded<N> loaded;
    master.template load<N>(i, loaded.x);
    return loaded;
  }
  template <int N>
  __device__ void store(int64_t i, const Loaded<N>& loaded) const {
    Widened<Out> y[N];
#pragma unroll
    for (int j = 0; j < N; ++j) y[j] = loaded.x[j];
    store_vector<N>(out + i, y);
  }
};

template <class Master, class In>
struct Write {
  static constexpr int kAhead = 2;
  Master master;
  const In* in;
  template <int N>
  using Loaded = Packed<In, N>;
  template <int N>
  __device__ Loaded<N> load(int64_t i) const {
    return Loaded<N>::load(in + i);
  }
  template <int N>
  __device__ void store(int64_t i, const Loaded<N>& loaded) const {
    Widened<In> x[N];
    float y[N];
    loaded.unpack(x);
#pragma unroll
    for (int j = 0; j < N; ++j) y[j] = static_cast<float>(x[j]);
    master.template store<N>(i, y);
  }
};

template <class Body>
__global__ void __launch_bounds__(kThreads) exact_values_kernel(Body body, const __grid_constant__ RunCuts cuts) {
  for_each_piece(cuts, [&](int) { return body; });
}

/// Over all n elements.
template <class Body>
void launch_exact(const Context& ctx, const Body& body, int64_t n, const std::initializer_list<Tensor>& tensors,
                  const char* op) {
  if (n == 0) return;
  RunCuts cuts;
  cut_run(cuts, 0, n, Body::kAhead, tensors);
  const auto kernel = exact_values_kernel<Body>;
  kernel<<<resident_blocks(ctx, cuts, kernel), kThreads, 0, stream_of(ctx)>>>(body, cuts);
  check_cuda(cudaGetLastError(), op);
}

}  // namespace

void adamw(const Context& ctx, const AdamWArgs& args) {
  const ShardTensors& shard = args.shard;
  const int64_t n = shard.weight.numel();
  TRAINER_CHECK(
      shard.grad.numel() == n && shard.m.numel() == n && shard.v.numel() == n && shard.m.dtype == shard.v.dtype,
      "adamw: {} weights, {} gradients, {} and {} moments", n, shard.grad.numel(), shard.m.numel(), shard.v.numel());
  shard.grad.as<float>();
  visit_master(shard, true, "adamw", [&](auto master) {
    visit_moment(shard.m, [&](auto m) {
      auto v = m;
      v.data = static_cast<decltype(v.data)>(shard.v.data);
      launch_update<AdamWRule<float>>(ctx, args, master, m, v, "adamw");
    });
  });
}

void sgd(const Context& ctx, const SgdArgs& args) {
  const ShardTensors& shard = args.shard;
  const int64_t n = shard.weight.numel();
  TRAINER_CHECK(shard.grad.numel() == n, "sgd: {} weights, {} gradients", n, shard.grad.numel());
  TRAINER_CHECK(shard.m ? shard.m.numel() == n : args.momentum == 0.0, "sgd: {} weights, {} moments, momentum {}", n,
                shard.m.numel(), args.momentum);
  shard.grad.as<float>();
  visit_master(shard, true, "sgd", [&](auto master) {
    if (!shard.m) return launch_update<SgdRule<float>>(ctx, args, master, NoMoment{}, NoMoment{}, "sgd");
    visit_moment(shard.m, [&](auto m) { launch_update<SgdRule<float>>(ctx, args, master, m, NoMoment{}, "sgd"); });
  });
}

void master_read(const Context& ctx, const MasterReadArgs& args) {
  const ShardTensors& s = args.shard;
  const int64_t n = s.weight.numel();
  TRAINER_CHECK(args.out.numel() == n, "master_read: {} values out of {}", args.out.numel(), n);
  const std::initializer_list<Tensor> tensors = {s.weight, s.low, s.master, args.out};
  visit_master(s, true, "master_read", [&](auto master) {
    using Master = decltype(master);
    if (args.out.dtype == Dtype::f64)
      launch_exact(ctx, Read<Master, double>{master, args.out.as<double>()}, n, tensors, "master_read");
    else
      launch_exact(ctx, Read<Master, float>{master, args.out.as<float>()}, n, tensors, "master_read");
  });
}

void master_write(const Context& ctx, const MasterWriteArgs& args) {
  const ShardTensors& s = args.shard;
  const int64_t n = s.weight.numel();
  TRAINER_CHECK(args.in.numel() == n, "master_write: {} values for {}", args.in.numel(), n);
  const std::initializer_list<Tensor> tensors = {s.weight, s.low, s.master, args.in};
  visit_master(s, false, "master_write", [&](auto master) {
    using Master = decltype(master);
    if (args.in.dtype == Dtype::f64)
      launch_exact(ctx, Write<Master, double>{master, args.in.as<double>()}, n, tensors, "master_write");
    else
      launch_exact(ctx, Write<Master, float>{master, args.in.as<float>()}, n, tensors, "master_write");
  });
}

}  // namespace trainer::ops::cuda
