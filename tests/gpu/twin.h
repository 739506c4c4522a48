// The same tensor on the host and on the card, and a run of an op on both.
#pragma once
#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/runtime/device.h"
#include "core/runtime/tensor.h"
#include "kernels/backend.h"
#include "kernels/ops.h"

/// At the start of every test here.
#define TRAINER_REQUIRE_GPU() \
  if (device_count() == 0) GTEST_SKIP() << "this machine has no CUDA device"

namespace trainer::testing {

/// Context of the card, made on first use. Only behind TRAINER_REQUIRE_GPU().
const Context& gpu_context();

/// How a tensor lies in memory: columns [first_col, first_col + cols) of rows that are longer by `padding`.
struct Layout {
  std::int64_t padding = 0, first_col = 0;
};
/// Contiguous; aligned with gaps; a view in the middle; rows that are not aligned; nothing aligned.
const std::vector<Layout>& layouts();
/// The three element types of the card.
const std::vector<Dtype>& gpu_dtypes();

class Twin {
 public:
  /// Zero everywhere, gaps full of a pattern that must survive.
  Twin(std::string name, Dtype dtype, std::int64_t rows, std::int64_t cols, Layout layout);

  Twin& randomise(std::uint64_t key, double scale = 1.0, double mean = 0.0);  // normal
  Twin& fill(double value);
  Twin& set(std::int64_t row, std::int64_t col, double value);
  /// Expects equal bits instead of near values.
  Twin& exact() {
    exact_ = true;
    return *this;
  }
  /// Multiplies what compare() allows.
  Twin& loosen(double factor) {
    looseness_ = factor;
    return *this;
  }

  /// Twins::check() does not ask for the same bits twice.
  Twin& may_vary(bool varies) {
    varies_ = varies;
    return *this;
  }
  bool varies() const { return varies_; }

  /// compare() takes the largest element to be at least this: for results that are zero but for rounding.
  Twin& at_least(double size) {
    least_ = size;
    return *this;
  }

  const std::string& name() const { return name_; }
  std::int64_t rows() const { return rows_; }
  std::int64_t cols() const { return cols_; }
  double initial(std::int64_t row, std::int64_t col) const { return get(initial_, row, col); }
  double on_cpu(std::int64_t row, std::int64_t col) const { return get(cpu_, row, col); }
  double on_gpu(std::int64_t row, std::int64_t col) const { return get(gpu_, row, col); }

  Tensor tensor(const Context& ctx) const;
  void reset(const Context& ctx);  // to the initial values
  void fetch(const Context& gpu);  // the card's values to the host
  bool same_as_before_fetch() const { return gpu_ == before_; }
  void compare() const;

 private:
  using Bytes = std::vector<unsigned char>;
  std::int64_t offset(std::int64_t row, std::int64_t col) const;
  double get(const Bytes& bytes, std::int64_t row, std::int64_t col) const;

  std::string name_;
  Dtype dtype_;
  std::int64_t rows_, cols_, stride_, first_col_;
  bool exact_ = false, varies_ = false;
  double looseness_ = 1.0, least_ = 0.0;
  Bytes initial_, gpu_, before_;
  mutable Bytes cpu_;
  std::shared_ptr<void> device_;
};

/// The tensors of one check.
class Twins {
 public:
  Twin& make(std::string name, Dtype dtype, std::int64_t rows, std::int64_t cols, Layout layout = {}) {
    return twins_.emplace_back(std::move(name), dtype, rows, cols, layout);
  }
  /// One UpdateState as bytes.
  Twin& make_state(const UpdateState& state);

  /// Runs `op` once on the CPU and twice on the card, each time from the initial values: the card must give the same
  /// bits twice (but for twins that may vary) and, tensor by tensor, what the CPU gives. op takes its tensors with
  /// twin.tensor(ctx).
  void check(const std::function<void(const Context&)>& op);

 private:
  std::deque<Twin> twins_;
};

UpdateState* state_of(const Twin& twin, const Context& ctx);

}  // namespace trainer::testing
