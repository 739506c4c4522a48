// A linear layer, or several that read the same input and lie side by side in memory (q, k, v; gate, up): one GEMM.
#pragma once
#include "core/model/pass.h"

namespace trainer {

class Linear {
 public:
  struct Part {
    std::string name;  // without ".weight"
    std::int64_t out_features = 0;
    ParamSplit split = ParamSplit::rows;
  };
  struct Options {
    int block = 0;
    std::int64_t in_features = 0;
    bool bias = false;
    double init_std = 0.0;
    /// Under sequence parallel the bias of a row-parallel layer is added to local tokens only: its gradient is partial.
    bool bias_partial = false;
    bool decay_bias = false;
  };
  /// Declares the weights of all parts, then their biases. Biases of row-parallel layers (split by columns) are
  /// replicated: the caller adds them after the sum over ranks, with bias() and backward_bias().
  Linear(const Options& options, const std::vector<Part>& parts, ParamList& params);

  /// y (+)= x w^T (+ bias, unless row-parallel). x [N, I], y [N, O]
  void forward(const Pass& pass, const BlockParams& params, const Tensor& x, const Tensor& y,
               bool accumulate = false) const;
  /// dw += dy^T x; column-parallel biases too.
  void backward_weight(const Pass& pass, const BlockParams& params, const Tensor& dy, const Tensor& x) const;
  /// dx (+)= dy w
  void backward_input(const Pass& pass, const BlockParams& params, const Tensor& dy, const Tensor& dx,
                      bool accumulate = false) const;
  /// Row-parallel layers: x += bias, on the rows that this rank holds outside.
  void add_bias(const Pass& pass, const BlockParams& params, const Tensor& x) const;
  void backward_bias(const Pass& pass, const BlockParams& params, const Tensor& dy) const;

 private:
  bool row_parallel_;
  ParamId first_weight_ = kNoParam, last_weight_ = kNoParam;
  ParamId first_bias_ = kNoParam, last_bias_ = kNoParam;
};

}  // namespace trainer
