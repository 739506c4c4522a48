// One call of each op, written once and run with different element types, strides and thread counts.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "kernels/ops.h"
#include "tests/kernels/host_tensor.h"

namespace trainer::testing {

/// Makes the tensors of a case. Inputs hold the same values for every element type that can hold `values` exactly.
class Workbench {
 public:
  /// `storage`: element type T. `values`: the type that inputs are rounded to first. `padding`: elements between rows.
  Workbench(Dtype storage, Dtype values, std::int64_t padding, std::int64_t tokens)
      : storage_(storage), values_(values), padding_(padding), tokens_(tokens) {}

  std::int64_t tokens() const { return tokens_; }
  /// T [rows, cols], random.
  HostTensor in(std::int64_t rows, std::int64_t cols, double scale = 1.0) {
    return random(HostTensor(storage_, rows, cols, padding_), scale);
  }
  /// T [n, 1], random.
  HostTensor vector(std::int64_t n) { return random(HostTensor(storage_, n, 1), 1.0); }
  /// T [rows, cols], to be written.
  HostTensor out(std::int64_t rows, std::int64_t cols) const { return {storage_, rows, cols, padding_}; }
  /// A [rows, cols], contiguous, zero.
  HostTensor sums(std::int64_t rows, std::int64_t cols) const { return {accumulator_dtype(storage_), rows, cols}; }

 private:
  HostTensor random(HostTensor t, double scale);

  Dtype storage_, values_;
  std::int64_t padding_, tokens_;
  std::uint64_t next_key_ = 1;
};

struct OpOutput {
  std::string name;
  HostTensor value;
  bool rounded;  // of type T, rounded once from A; otherwise of type A
};

struct OpCase {
  std::string name;
  std::function<std::vector<OpOutput>(Workbench&)> run;
  bool openblas = false;  // one matrix product over all tokens: bits may depend on the number of threads
};

std::vector<OpCase> op_cases();

}  // namespace trainer::testing
