// Documents as cuDNN takes them, made on the device from where they start, so that the host waits for nothing: tables
// of lengths and of places in memory, and the log-sum-exp in cuDNN's order.
#pragma once
#include <cstdint>

#include "core/runtime/context.h"

namespace trainer::ops::cuda {

/// B documents, seen as `sequences` of which those behind the B are empty.
struct DocumentTables {
  static constexpr int kMostStrides = 9;  // q, k, v, out, lse and the gradients of the first four

  const std::int32_t* starts = nullptr;      // [B + 1]: rows
  std::int64_t documents = 0;                // B
  std::int64_t sequences = 0;                // at least B
  std::int64_t spacing = 0;                  // entries from one table of offsets to the next, at least sequences + 1
  std::int32_t* lengths = nullptr;           // [sequences] out: rows of each
  std::int64_t* offsets = nullptr;           // [strides, spacing] out: first row of each x stride, in elements
  std::int64_t row_strides[kMostStrides]{};  // of the tensors that hold the documents, each once
  int strides = 0;
};
void fill_document_tables(const Context& ctx, const DocumentTables& tables);

/// The log-sum-exp in two orders.
struct DocumentLse {
  const std::int32_t* starts = nullptr;  // [B + 1]: rows
  std::int64_t documents = 0;            // B
  std::int64_t tokens = 0, heads = 0;    // N, H
  float* by_document = nullptr;  // [N * H] as ops::AttentionForwardArgs::lse: document by document, head by head
  float* by_token = nullptr;     // [N, H]
};
void lse_to_tokens(const Context& ctx, const DocumentLse& lse);
void lse_to_documents(const Context& ctx, const DocumentLse& lse);

}  // namespace trainer::ops::cuda
