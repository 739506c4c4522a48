// Fill, cast, sums, bias and dropout.
#include "kernels/cpu/common.h"
#include "kernels/rounding.h"

namespace trainer::ops::cpu {
namespace {

template <class In, class Out>
Out convert(In value) {
  if constexpr (std::is_same_v<In, double> && sizeof(Out) == 2)
    return Out(float_rounded_to_odd(value));
  else
    return static_cast<Out>(static_cast<Acc<Out>>(widen(value)));
}

}  // namespace

void fill(const Context&, const FillArgs& args) {
  visit_float(args.x.dtype, [&]<class T>(TypeTag<T>) {
    const Rows<T> x = rows_of<T>(args.x);
    const T value = convert<double, T>(args.value);
    parallel_for(args.x.rows, args.x.cols, [&](std::int64_t n) { std::fill_n(x[n], args.x.cols, value); });
  });
}

void cast(const Context&, const CastArgs& args) {
  check_shape(args.out, "cast: out", args.out.dtype, args.in.rows, args.in.cols);
  visit_float(args.in.dtype, [&]<class In>(TypeTag<In>) {
    visit_float(args.out.dtype, [&]<class Out>(TypeTag<Out>) {
      const Rows<In> in = rows_of<In>(args.in);
      const Rows<Out> out = rows_of<Out>(args.out);
      parallel_for(args.in.rows, args.in.cols, [&](std::int64_t n) {
        for (std::int64_t c = 0; c < args.in.cols; ++c) out[n][c] = convert<In, Out>(in[n][c]);
      });
    });
  });
}

void add(const Context&, const AddArgs& args) {
  check_shape(args.b, "add: b", args.a.dtype, args.a.rows, args.a.cols);
  check_shape(args.out, "add: out", args.a.dtype, args.a.rows, args.a.cols);
  visit_float(args.a.dtype, [&]<class T>(TypeTag<T>) {
    const Rows<T> a = rows_of<T>(args.a), b = rows_of<T>(args.b), out = rows_of<T>(args.out);
    parallel_for(args.a.rows, args.a.cols, [&](std::int64_t n) {
      for (std::int64_t c = 0; c < args.a.cols; ++c) out[n][c] = narrow<T>(widen(a[n][c]) + widen(b[n][c]));
    });
  });
}

void sum_parts(const Context&, const SumPartsArgs& args) {
  const std::int64_t rows = args.out.rows, cols = args.out.cols, parts = parts_of(args.parts, args.out, "sum_parts");
  if (args.own) check_shape(args.own, "sum_parts: own", args.parts.dtype, rows, cols);
  const auto add = [&]<class T, class Out>(TypeTag<T>, TypeTag<Out>) {
    const Rows<T> from = rows_of<T>(args.parts);
    const Rows<T> own = args.own ? rows_of<T>(args.own) : Rows<T>{};
    const Rows<Out> out = rows_of<Out>(args.out);
    parallel_for(rows, parts * cols, [&](std::int64_t n) {
      for (std::int64_t c = 0; c < cols; ++c) {
        const auto value = [&](std::int64_t part) {
          return widen(args.own && part == args.own_part ? own[n][c] : from[part * rows + n][c]);
        };
        Acc<T> sum = value(0);
        for (std::int64_t part = 1; part < parts; ++part) sum += value(part);
        const Acc<T> rounded = widen(narrow<T>(sum));
        out[n][c] = narrow<Out>(args.accumulate ? widen(out[n][c]) + rounded : rounded);
      }
    });
  };
  visit_float(args.parts.dtype, [&]<class T>(TypeTag<T> type) {
    if (args.out.dtype == args.parts.dtype)
      add(type, type);
    else
      add(type, TypeTag<Acc<T>>{});
  });
}

void add_bias(const Context&, const AddBiasArgs& args) {
  visit_float(args.x.dtype, [&]<class T>(TypeTag<T>) {
    const Rows<T> x = rows_of<T>(args.x);
    const T* bias = vector_of<T>(args.bias, "add_bias: bias", args.x.cols);
    TRAINER_CHECK(bias != nullptr, "add_bias: no bias");
    parallel_for(args.x.rows, args.x.cols, [&](std::int64_t n) {
      for (std::int64_t c = 0; c < args.x.cols; ++c) x[n][c] = narrow<T>(widen(x[n][c]) + widen(bias[c]));
    });
  });
}

void bias_backward(const Context&, const BiasBackwardArgs& args) {
  visit_float(args.dy.dtype, [&]<class T>(TypeTag<T>) {
    const Rows<T> dy = rows_of<T>(args.dy);
    auto* dbias = vector_of<Acc<T>>(args.dbias, "bias_backward: dbias", args.dy.cols);
    TRAINER_CHECK(dbias != nullptr, "bias_backward: no dbias");
    sum_columns(
        args.dy.rows, args.dy.cols, [&](std::int64_t n, std::int64_t c) { return widen(dy[n][c]); }, dbias,
        args.accumulate);
  });
}

void dropout(const Context&, const DropoutArgs& args) {
  check_shape(args.out, "dropout: out", args.x.dtype, args.x.rows, args.x.cols);
  visit_float(args.x.dtype, [&]<class T>(TypeTag<T>) {
    const Rows<T> x = rows_of<T>(args.x), out = rows_of<T>(args.out);
    const std::int64_t cols = args.x.cols;
    parallel_for(args.x.rows, cols * 8, [&](std::int64_t n) {
      constexpr std::int64_t kChunk = 256;
      Acc<T> factors[kChunk];
      for (std::int64_t first = 0; first < cols; first += kChunk) {
        const std::int64_t count = std::min(kChunk, cols - first);
        dropout_factors(args.dropout, static_cast<std::uint64_t>((args.row_offset + n) * cols + first), count, factors);
        for (std::int64_t c = 0; c < count; ++c)
          out[n][first + c] = narrow<T>(apply_dropout(widen(x[n][first + c]), factors[c]));
      }
    });
  });
}

}  // namespace trainer::ops::cpu
