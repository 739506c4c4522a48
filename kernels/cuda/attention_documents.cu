#include "kernels/cuda/attention_documents.h"

#include "kernels/cuda/attention_call.cuh"

namespace trainer::ops::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads) tables_kernel(DocumentTables t) {
  const int64_t s = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (s > t.sequences) return;
  const int64_t start = t.starts[min(s, t.documents)];
  if (s < t.sequences) t.lengths[s] = s < t.documents ? static_cast<int32_t>(t.starts[s + 1] - start) : 0;
  for (int i = 0; i < t.strides; ++i) t.offsets[i * t.spacing + s] = start * t.row_strides[i];
}

/// A thread moves one number; neighbours are so in by_document.
template <bool kToTokens>
__global__ void __launch_bounds__(kThreads) lse_kernel(DocumentLse lse) {
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (at >= lse.tokens * lse.heads) return;
  const int64_t document = sequence_of(lse.starts, lse.documents, at / lse.heads);
  const int64_t start = lse.starts[document], length = lse.starts[document + 1] - start;
  const int64_t within = at - start * lse.heads, head = within / length;
  const int64_t token = start + within - head * length;
  if (kToTokens)
    lse.by_token[token * lse.heads + head] = lse.by_document[at];
  else
    lse.by_document[at] = lse.by_token[token * lse.heads + head];
}

template <bool kToTokens>
void move_lse(const Context& ctx, const DocumentLse& lse) {
  const unsigned blocks = grid_size(ceil_div(lse.tokens * lse.heads, kThreads));
  lse_kernel<kToTokens><<<blocks, kThreads, 0, stream_of(ctx)>>>(lse);
  check_cuda(cudaGetLastError(), "log-sum-exp of documents");
}

}  // namespace

void fill_document_tables(const Context& ctx, const DocumentTables& tables) {
  tables_kernel<<<grid_size(ceil_div(tables.sequences + 1, kThreads)), kThreads, 0, stream_of(ctx)>>>(tables);
  check_cuda(cudaGetLastError(), "tables of documents");
}

void lse_to_tokens(const Context& ctx, const DocumentLse& lse) {
  move_lse<true>(ctx, lse);
}

void lse_to_documents(const Context& ctx, const DocumentLse& lse) {
  move_lse<false>(ctx, lse);
}

}  // namespace trainer::ops::cuda
