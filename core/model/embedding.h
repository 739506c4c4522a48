// Token embedding (rows of the vocabulary split over tp ranks) and, for GPT-2, learned positions. Block 0.
#pragma once
#include "core/model/pass.h"

namespace trainer {

/// The declaration of a weight with one row a token: [vocab_size, C], split by rows after padding.
ParamDecl vocabulary_decl(const Config& config, int block, const std::string& name, int tp_size);

class Embedding {
 public:
  Embedding(const Config& config, int tp_size, ParamList& params);

  struct Workspace {
    Tensor partial;  // [N, C]: this rank's part of the vocabulary
    Tensor local;    // [local N, C]; sequence parallel only
    Tensor dfull;    // [N, C]: gathered gradient; sequence parallel only
  };
  Workspace allocate_workspace(const Config& config, const ModelShape& shape, Arena& arena) const;

  /// The stream that enters the first block; it lies in `work`.
  ResidualStream forward(const Pass& pass, const BlockParams& params, const ModelShape& shape,
                         const Workspace& work) const;
  /// d [local N, C]; overwritten. `accumulate_tokens`: the token weight's gradient already holds the head's part (tied
  /// weights).
  void backward(const Pass& pass, const BlockParams& params, const ModelShape& shape, const Workspace& work,
                const Tensor& d, bool accumulate_tokens) const;

  /// The token weight, which a tied head uses: [V, C] local rows.
  ParamId tokens() const { return tokens_; }

 private:
  Tensor local_positions(const Pass& pass) const;

  double dropout_;
  ParamId tokens_, positions_ = kNoParam;
};

}  // namespace trainer
