#include "core/model/linear.h"

namespace trainer {

Linear::Linear(const Options& options, const std::vector<Part>& parts, ParamList& params)
    : row_parallel_(parts.front().split == ParamSplit::columns) {
  for (const Part& part : parts) {
    ParamDecl decl;
    decl.name = part.name + ".weight";
    decl.block = options.block;
    decl.rows = part.out_features;
    decl.cols = options.in_features;
    decl.split = part.split;
    decl.init = ParamInit::normal;
    decl.init_std = options.init_std;
    decl.fused_with_previous = first_weight_ != kNoParam;
    last_weight_ = params.add(decl);
    if (first_weight_ == kNoParam) first_weight_ = last_weight_;
  }
  if (!options.bias) return;
  for (const Part& part : parts) {
    ParamDecl decl;
    decl.name = part.name + ".bias";
    decl.block = options.block;
    decl.dims = 1;
    decl.rows = part.out_features;
    decl.split = row_parallel_ ? ParamSplit::replicated : part.split;
    decl.init = ParamInit::zeros;
    decl.decay = options.decay_bias;
    decl.fused_with_previous = first_bias_ != kNoParam;
    last_bias_ = params.add(decl);
    if (first_bias_ == kNoParam) first_bias_ = last_bias_;
  }
}

void Linear::forward(const Pass& pass, const BlockParams& params, const Tensor& x, const Tensor& y,
                     const Tensor& addend) const {
  ops::linear_forward(pass.ctx, {.x = x,
                                 .w = params.w(first_weight_, last_weight_),
                                 .bias = adds_bias_after_sum(pass) ? Tensor{} : params.w(first_bias_, last_bias_),
                                 .y = y,
                                 .addend = addend});
}

void Linear::forward(const Pass& pass, const BlockParams& params, const Tensor& x, const Leaving& y,
                     const Tensor& addend) const {
  pass.tp.start_leave(pass.ctx, y, [&](const RowRange& rows, const Tensor& part) {
    forward(pass, params, rows.of(x), part, rows.of(addend));
  });
}

void Linear::forward(const Pass& pass, const BlockParams& params, const Entering& x, const Tensor& y) const {
  x.for_each_range(pass.ctx,
                   [&](const RowRange& rows, const Tensor& part) { forward(pass, params, part, rows.of(y)); });
}

void Linear::forward_activated(const Pass& pass, const BlockParams& params, const Entering& x, const Tensor& y,
                               Activation activation, const Tensor& activated) const {
  TRAINER_CHECK(!row_parallel_, "an activation function of parts of a sum");
  x.for_each_range(pass.ctx, [&](const RowRange& rows, const Tensor& part) {
    ops::linear_forward(pass.ctx, {.x = part,
                                   .w = params.w(first_weight_, last_weight_),
                                   .bias = params.w(first_bias_, last_bias_),
                                   .y = rows.of(y),
                                   .activated = rows.of(activated),
                                   .activation = activation});
  });
}

void Linear::backward_weight(const Pass& pass, const BlockParams& params, const Tensor& dy, const Tensor& x) const {
  ops::linear_backward_weight(pass.ctx, {.dy = dy,
                                         .x = x,
                                         .dw = params.g(first_weight_, last_weight_),
                                         .accumulate = params.accumulate,
                                         .dbias = params.g(first_bias_, last_bias_)});
}

void Linear::backward_input(const Pass& pass, const BlockParams& params, const Entering& dy, const Tensor& dx) const {
  dy.for_each_range(pass.ctx, [&](const RowRange& rows, const Tensor& part) {
    ops::linear_backward_input(pass.ctx, {.dy = part, .w = params.w(first_weight_, last_weight_), .dx = rows.of(dx)});
  });
}

void Linear::backward_input(const Pass& pass, const BlockParams& params, const Entering& dy, Activation activation,
                            const Tensor& input, const Tensor& dx) const {
  dy.for_each_range(pass.ctx, [&](const RowRange& rows, const Tensor& part) {
    ops::linear_backward_input(pass.ctx, {.dy = part,
                                          .w = params.w(first_weight_, last_weight_),
                                          .dx = rows.of(dx),
                                          .activation_input = rows.of(input),
                                          .activation = activation});
  });
}

void Linear::backward_input(const Pass& pass, const BlockParams& params, const Tensor& dy, const Leaving& dx) const {
  pass.tp.start_leave(pass.ctx, dx, [&](const RowRange& rows, const Tensor& part) {
    ops::linear_backward_input(pass.ctx, {.dy = rows.of(dy), .w = params.w(first_weight_, last_weight_), .dx = part});
  });
}

void Linear::add_bias(const Pass& pass, const BlockParams& params, const Tensor& x) const {
  if (first_bias_ == kNoParam || !adds_bias_after_sum(pass)) return;
  ops::add_bias(pass.ctx, {.x = x, .bias = params.w(first_bias_, last_bias_)});
}

}  // namespace trainer
