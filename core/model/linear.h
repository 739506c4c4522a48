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
    bool decay_bias = false;
  };
  /// Declares the weights of all parts, then their biases. Biases of row-parallel layers (split by columns) are
  /// replicated. Where several ranks add up such a layer's output, the caller adds them after the sum: add_bias().
  Linear(const Options& options, const std::vector<Part>& parts, ParamList& params);

  /// y = addend + x w^T + bias, but for the bias that add_bias() adds. x [N, I]; y, addend [N, O]; addend absent, or y
  /// as well
  void forward(const Pass& pass, const BlockParams& params, const Tensor& x, const Tensor& y,
               const Tensor& addend = {}) const;
  /// The same where the sum of y over the ranks follows: starts to leave.
  void forward(const Pass& pass, const BlockParams& params, const Tensor& x, const Leaving& y,
               const Tensor& addend = {}) const;
  /// y = x w^T + bias. With an `activation` as well activated = f(y) of the unrounded sum. y, activated [N, O]
  void forward(const Pass& pass, const BlockParams& params, const Entering& x, const Tensor& y) const;
  void forward_activated(const Pass& pass, const BlockParams& params, const Entering& x, const Tensor& y,
                         Activation activation, const Tensor& activated) const;
  /// dw += dy^T x, and the gradient of the biases. dy [N, O] has all tokens: the bias of a row-parallel layer has its
  /// whole gradient on every rank.
  void backward_weight(const Pass& pass, const BlockParams& params, const Tensor& dy, const Tensor& x) const;
  /// dx = dy w. dx [N, I]
  void backward_input(const Pass& pass, const BlockParams& params, const Entering& dy, const Tensor& dx) const;
  /// dx = (dy w) f'(input), rounded once: x was f(input). input, dx [N, I]
  void backward_input(const Pass& pass, const BlockParams& params, const Entering& dy, Activation activation,
                      const Tensor& input, const Tensor& dx) const;
  /// dx = dy w where the sum over the ranks follows: starts to leave. dy [N, O]
  void backward_input(const Pass& pass, const BlockParams& params, const Tensor& dy, const Leaving& dx) const;
  /// x += bias, once, where x [local N, O] is the sum over several ranks of what a row-parallel layer gave; otherwise
  /// nothing.
  void add_bias(const Pass& pass, const BlockParams& params, const Tensor& x) const;

 private:
  /// A bias must not be added by each of the ranks whose results are added up.
  bool adds_bias_after_sum(const Pass& pass) const { return row_parallel_ && pass.tp.size() > 1; }

  bool row_parallel_;
  ParamId first_weight_ = kNoParam, last_weight_ = kNoParam;
  ParamId first_bias_ = kNoParam, last_bias_ = kNoParam;
};

}  // namespace trainer
