// Fill, cast, sums, bias and dropout.
#include <cmath>
#include <cstring>

#include "kernels/cuda/elementwise.cuh"
#include "kernels/rounding.h"

namespace trainer::ops::cuda {
namespace {

/// Writes one bit pattern. W is an unsigned integer as wide as the element.
template <class W>
struct Fill {
  View<W> x;
  W value;
  uint32_t even_word, odd_word;  // of a row of patterns

  template <int N>
  struct Loaded {};
  template <int N>
  __device__ Loaded<N> load(int64_t, int64_t) const {
    return {};
  }
  template <int N>
  __device__ void store(int64_t row, int64_t col, const Loaded<N>&) const {
    if constexpr (N == 1) {
      *x.at(row, col) = value;
    } else {
      Packed<W, N> p;
#pragma unroll
      for (int i = 0; i < Packed<W, N>::kWords; ++i) p.words[i] = i % 2 == 0 ? even_word : odd_word;
      p.store(x.at(row, col));
    }
  }
};

template <class W>
void fill_pattern(const Context& ctx, const Tensor& x, W value) {
  Fill<W> body{{static_cast<W*>(x.data), x.stride}, value, 0, 0};
  uint64_t row = value;
  for (unsigned bits = 8 * sizeof(W); bits < 64; bits *= 2) row |= row << bits;
  body.even_word = static_cast<uint32_t>(row);
  body.odd_word = static_cast<uint32_t>(row >> 32);
  const LoopShape shape = loop_shape(x);
  launch_elementwise<kVector<W>, 4>(ctx, body, shape.rows, shape.cols, aligned16(x), "fill");
}

template <class Out, class In>
__device__ inline Widened<Out> convert(In value) {
  if constexpr (sizeof(In) == 8 && sizeof(Out) == 2)
    return float_rounded_to_odd(value);
  else
    return static_cast<Widened<Out>>(value);
}

template <class In, class Out>
struct Cast {
  View<In> in;
  View<Out> out;
  template <int N>
  using Loaded = Packed<In, N>;
  template <int N>
  __device__ Loaded<N> load(int64_t row, int64_t col) const {
    return Loaded<N>::load(in.at(row, col));
  }
  template <int N>
  __device__ void store(int64_t row, int64_t col, const Loaded<N>& loaded) const {
    Widened<In> x[N];
    Widened<Out> y[N];
    loaded.unpack(x);
#pragma unroll
    for (int i = 0; i < N; ++i) y[i] = convert<Out>(x[i]);
    store_vector<N>(out.at(row, col), y);
  }
};

template <class Body>
void visit_float_or_double(Dtype dtype, const Body& body) {
  if (dtype == Dtype::f64) return body(TypeTag<double>{});
  visit_float(dtype, "cast", body);
}

template <class T>
struct Add {
  View<T> a, b, out;
  template <int N>
  struct Loaded {
    Packed<T, N> a, b;
  };
  template <int N>
  __device__ Loaded<N> load(int64_t row, int64_t col) const {
    return {Packed<T, N>::load(a.at(row, col)), Packed<T, N>::load(b.at(row, col))};
  }
  template <int N>
  __device__ void store(int64_t row, int64_t col, const Loaded<N>& loaded) const {
    float x[N], y[N];
    loaded.a.unpack(x);
    loaded.b.unpack(y);
#pragma unroll
    for (int i = 0; i < N; ++i) x[i] += y[i];
    store_vector<N>(out.at(row, col), x);
  }
};

template <class T, class Out>
struct SumParts {
  View<T> parts, own;
  View<Out> out;
  int64_t rows;  // of a part
  int count;
  int own_part;  // -1: own is absent
  bool accumulate;

  template <int N>
  struct Loaded {
    float sum[N];
  };
  __device__ const T* at(int part, int64_t row, int64_t col) const {
    return part == own_part ? own.at(row, col) : parts.at(part * rows + row, col);
  }
  template <int N>
  __device__ Loaded<N> load(int64_t row, int64_t col) const {
    Loaded<N> loaded;
    Packed<T, N>::load(at(0, row, col)).unpack(loaded.sum);
    for (int part = 1; part < count; ++part) {
      float x[N];
      Packed<T, N>::load(at(part, row, col)).unpack(x);
#pragma unroll
      for (int i = 0; i < N; ++i) loaded.sum[i] += x[i];
    }
#pragma unroll
    for (int i = 0; i < N; ++i) loaded.sum[i] = widen(narrow<T>(loaded.sum[i]));
    if (accumulate) {
      float x[N];
      Packed<Out, N>::load(out.at(row, col)).unpack(x);
#pragma unroll
      for (int i = 0; i < N; ++i) loaded.sum[i] = x[i] + loaded.sum[i];
    }
    return loaded;
  }
  template <int N>
  __device__ void store(int64_t row, int64_t col, const Loaded<N>& loaded) const {
    store_vector<N>(out.at(row, col), loaded.sum);
  }
};

template <class T>
struct Dropout {
  View<T> x, out;
  uint64_t key;
  uint64_t first;      // global index of element (0, 0)
  int64_t row_length;  // global indices from one row to the next
  uint32_t threshold;  // kept when the upper 24 bits are at least this
  float kept;          // factor

  template <int N>
  using Loaded = Packed<T, N>;
  template <int N>
  __device__ Loaded<N> load(int64_t row, int64_t col) const {
    return Loaded<N>::load(x.at(row, col));
  }
  template <int N>
  __device__ void store(int64_t row, int64_t col, const Loaded<N>& loaded) const {
    float values[N];
    uint32_t bits[N];
    loaded.unpack(values);
    random_words<N>(key, first + static_cast<uint64_t>(row * row_length + col), bits);
#pragma unroll
    for (int i = 0; i < N; ++i) values[i] = (bits[i] >> 8) >= threshold ? values[i] * kept : 0.0f;
    store_vector<N>(out.at(row, col), values);
  }
};

}  // namespace

void fill(const Context& ctx, const FillArgs& args) {
  switch (args.x.dtype) {
    case Dtype::f64: {
      uint64_t bits;
      std::memcpy(&bits, &args.value, sizeof bits);
      return fill_pattern<uint64_t>(ctx, args.x, bits);
    }
    case Dtype::f32: {
      const auto value = static_cast<float>(args.value);
      uint32_t bits;
      std::memcpy(&bits, &value, sizeof bits);
      return fill_pattern<uint32_t>(ctx, args.x, bits);
    }
    case Dtype::bf16:
      return fill_pattern<uint16_t>(ctx, args.x, bf16_bits_from_float(float_rounded_to_odd(args.value)));
    case Dtype::f16:
      return fill_pattern<uint16_t>(ctx, args.x, f16_bits_from_float(float_rounded_to_odd(args.value)));
    default:
      TRAINER_CHECK(false, "fill: {} is not a floating type", dtype_name(args.x.dtype));
  }
}

void cast(const Context& ctx, const CastArgs& args) {
  check_shape(args.out, "cast: out", args.out.dtype, args.in.rows, args.in.cols);
  visit_float_or_double(args.in.dtype, [&](auto in_tag) {
    visit_float_or_double(args.out.dtype, [&](auto out_tag) {
      using In = typename decltype(in_tag)::type;
      using Out = typename decltype(out_tag)::type;
      const LoopShape shape = loop_shape(args.in, args.out);
      launch_elementwise<8, 2>(ctx, Cast<In, Out>{view_of<In>(args.in), view_of<Out>(args.out)}, shape.rows, shape.cols,
                               all_aligned16(args.in, args.out), "cast");
    });
  });
}

void add(const Context& ctx, const AddArgs& args) {
  check_shape(args.b, "add: b", args.a.dtype, args.a.rows, args.a.cols);
  check_shape(args.out, "add: out", args.a.dtype, args.a.rows, args.a.cols);
  visit_float(args.a.dtype, "add", [&](auto tag) {
    using T = typename decltype(tag)::type;
    const LoopShape shape = loop_shape(args.a, args.b, args.out);
    launch_elementwise<kVector<T>, 2>(ctx, Add<T>{view_of<T>(args.a), view_of<T>(args.b), view_of<T>(args.out)},
                                      shape.rows, shape.cols, all_aligned16(args.a, args.b, args.out), "add");
  });
}

void sum_parts(const Context& ctx, const SumPartsArgs& args) {
  const Tensor &parts = args.parts, &out = args.out;
  const auto count = static_cast<int>(parts_of(parts, out, "sum_parts"));
  const Tensor own = args.own ? args.own : parts.row_range(0, out.rows);  // the latter is not read
  check_shape(own, "sum_parts: own", parts.dtype, out.rows, out.cols);
  const int own_part = args.own ? static_cast<int>(args.own_part) : -1;
  const bool flat = parts.contiguous() && own.contiguous() && out.contiguous();
  const Tensor from = flat ? parts.reshape(count, out.numel()) : parts;  // a part is one row
  const Tensor mine = flat ? own.flat() : own, to = flat ? out.flat() : out;
  const auto launch = [&](auto tag, auto out_tag) {
    using T = typename decltype(tag)::type;
    using Out = typename decltype(out_tag)::type;
    const SumParts<T, Out> body{view_of<T>(from), view_of<T>(mine), view_of<Out>(to), to.rows, count,
                                own_part,         args.accumulate};
    launch_elementwise<kVector<T>, 2>(ctx, body, to.rows, to.cols, all_aligned16(from, mine, to), "sum_parts");
  };
  visit_float(parts.dtype, "sum_parts", [&](auto tag) {
    if (out.dtype == parts.dtype)
      launch(tag, tag);
    else
      launch(tag, TypeTag<float>{});
  });
}

void add_bias(const Context& ctx, const AddBiasArgs& args) {
  visit_float(args.x.dtype, "add_bias", [&](auto tag) {
    using T = typename decltype(tag)::type;
    T* bias = vector_of<T>(args.bias, "add_bias: bias", args.x.cols);
    TRAINER_CHECK(bias != nullptr, "add_bias: no bias");
    // The bias is a matrix whose rows are the same: stride 0.
    const Add<T> body{view_of<T>(args.x), {bias, 0}, view_of<T>(args.x)};
    const bool aligned = aligned16(args.x) && reinterpret_cast<std::uintptr_t>(bias) % 16 == 0;
    launch_elementwise<kVector<T>, 2>(ctx, body, args.x.rows, args.x.cols, aligned, "add_bias");
  });
}

void dropout(const Context& ctx, const DropoutArgs& args) {
  check_shape(args.out, "dropout: out", args.x.dtype, args.x.rows, args.x.cols);
  visit_float(args.x.dtype, "dropout", [&](auto tag) {
    using T = typename decltype(tag)::type;
    // uniform = (24 bits) x 2^-24, so uniform >= p is a comparison of integers.
    const auto threshold = static_cast<uint32_t>(std::ceil(args.dropout.p * 16777216.0));
    const auto first = static_cast<uint64_t>(args.row_offset * args.x.cols);
    const Dropout<T> body{view_of<T>(args.x),
                          view_of<T>(args.out),
                          args.dropout.key,
                          first,
                          args.x.cols,
                          threshold,
                          static_cast<float>(1.0 / (1.0 - args.dropout.p))};
    const LoopShape shape = loop_shape(args.x, args.out);
    launch_elementwise<kVector<T>, 2>(ctx, body, shape.rows, shape.cols, all_aligned16(args.x, args.out), "dropout");
  });
}

}  // namespace trainer::ops::cuda
