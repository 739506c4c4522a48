#include "kernels/cuda/attention_cudnn.h"

#include <cudnn.h>
#include <cudnn_frontend.h>

#include <algorithm>
#include <bit>
#include <exception>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/runtime/attention_support.h"
#include "core/runtime/cuda_check.h"
#include "core/runtime/device.h"
#include "core/runtime/divide.h"
#include "kernels/cuda/attention_documents.h"
#include "kernels/cuda/backend.h"
#include "kernels/shapes.h"

namespace trainer {
namespace {

namespace fe = cudnn_frontend;

/// Names of the tensors of a graph: where execute() finds each address.
enum Uid : std::int64_t {
  kQ = 1,
  kK,
  kV,
  kOut,
  kLse,
  kDout,
  kDq,
  kDk,
  kDv,
  kQLengths,
  kKvLengths,
  kOffsets  // of the first row stride, then of the others
};

void check(cudnnStatus_t status, const char* call) {
  if (status != CUDNN_STATUS_SUCCESS) fail(ExitCode::other, "cuDNN: {}: {}", call, cudnnGetErrorString(status));
}

void check(fe::error_t error, const char* what) {
  if (error.is_bad()) fail(ExitCode::other, "cuDNN attention: {}: {}", what, error.get_message());
}

/// A key in words, for errors.
std::string text_of(const AttentionPlanKey& key) {
  return fmt::format(
      "{}, {}, {} sequences of {} queries and {} keys{}, {} heads on {} of {}, window {}, {}row strides q {} k {} v {} "
      "out {} dout {} dq {} dk {} dv {}",
      key.backward ? "backward" : "forward", dtype_name(key.dtype), key.sequences, key.seq_q, key.seq_kv,
      key.tokens > 0 ? fmt::format(" at most, {} tokens of documents", key.tokens) : "", key.heads, key.kv_heads,
      key.head_dim, key.window, key.deterministic ? "deterministic, " : "", key.q_stride, key.k_stride, key.v_stride,
      key.out_stride, key.dout_stride, key.dq_stride, key.dk_stride, key.dv_stride);
}

/// The least power of two that is at least n.
std::int64_t power_of_two(std::int64_t n) {
  return static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(n)));
}

/// Entries of a table of offsets: the sequences and the end, in an even number, so that each table is 16-byte aligned.
std::int64_t table_spacing(std::int64_t sequences) {
  return round_up(sequences + 1, 2);
}

/// What a call on documents has behind cuDNN's workspace.
struct DocumentScratch {
  std::int32_t* lengths = nullptr;    // DocumentTables::lengths
  std::int64_t* offsets = nullptr;    // DocumentTables::offsets
  float* lse = nullptr;               // [N, H]
  void *dk = nullptr, *dv = nullptr;  // [N, K * D], where the key has them
  std::int64_t bytes = 0;             // of all
};

/// Laid out from `start`, which may be null. The tables have room for a document a token, so that the size does not
/// depend on the number of documents.
DocumentScratch document_scratch(const AttentionPlanKey& key, void* start) {
  DocumentScratch scratch;
  const auto take = [&](std::int64_t bytes) {
    void* const part = start == nullptr ? nullptr : static_cast<char*>(start) + scratch.bytes;
    scratch.bytes += round_up(bytes, kMemoryAlignment);
    return part;
  };
  const std::int64_t most = power_of_two(key.tokens);
  scratch.lengths = static_cast<std::int32_t*>(take(most * dtype_size(Dtype::i32)));
  const auto entry = static_cast<std::int64_t>(sizeof(std::int64_t));
  scratch.offsets =
      static_cast<std::int64_t*>(take(ops::cuda::DocumentTables::kMostStrides * table_spacing(most) * entry));
  scratch.lse = static_cast<float*>(take(key.tokens * key.heads * dtype_size(Dtype::f32)));
  if (key.own_dkv()) {
    const std::int64_t bytes = key.tokens * key.kv_heads * key.head_dim * dtype_size(key.dtype);
    scratch.dk = take(bytes);
    scratch.dv = take(bytes);
  }
  return scratch;
}

}  // namespace

/// A compiled graph. One for documents has tensors whose sequences begin where tables on the device say ("ragged").
class AttentionPlan {
 public:
  AttentionPlan(cudnnHandle_t handle, const AttentionPlanKey& key) {
    graph_.set_io_data_type(key.dtype == Dtype::bf16 ? fe::DataType_t::BFLOAT16 : fe::DataType_t::HALF)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    const auto q = rows("q", kQ, key.heads, key.seq_q, key.q_stride, key);
    const auto k = rows("k", kK, key.kv_heads, key.seq_kv, key.k_stride, key);
    const auto v = rows("v", kV, key.kv_heads, key.seq_kv, key.v_stride, key);
    if (key.backward)
      add_backward(q, k, v, key);
    else
      add_forward(q, k, v, key);
    check(graph_.build(handle, {fe::HeurMode_t::A}), "build");
    check(graph_.get_workspace_size(workspace_bytes_), "workspace size");
  }

  std::int64_t workspace_bytes() const { return workspace_bytes_; }
  /// Strides of the rows that documents lie in, each once: that of table i is the i-th.
  const std::vector<std::int64_t>& row_strides() const { return row_strides_; }

  void run(cudnnHandle_t handle, AttentionPlans::Addresses& addresses, void* workspace) const {
    check(graph_.execute(handle, addresses, workspace), "execute");
  }

 private:
  using GraphTensor = std::shared_ptr<fe::graph::Tensor_attributes>;

  /// A list with an entry a sequence.
  GraphTensor table(const std::string& name, std::int64_t uid, std::int64_t entries, fe::DataType_t type) {
    fe::graph::Tensor_attributes attributes;
    attributes.set_name(name).set_uid(uid).set_dim({entries, 1, 1, 1}).set_stride({1, 1, 1, 1}).set_data_type(type);
    return graph_.tensor(attributes);
  }
  /// Documents: says where in the tensor each begins. Tensors of one row stride share a table.
  void place_documents(fe::graph::Tensor_attributes& tensor, std::int64_t stride, const AttentionPlanKey& key) {
    if (key.tokens == 0) return;
    const auto at = std::find(row_strides_.begin(), row_strides_.end(), stride) - row_strides_.begin();
    if (at == std::ssize(row_strides_)) {
      row_strides_.push_back(stride);
      offsets_.push_back(table(fmt::format("offsets of rows {} apart", stride), kOffsets + at, key.sequences + 1,
                               fe::DataType_t::INT64));
    }
    tensor.set_ragged_offset(offsets_[static_cast<std::size_t>(at)]);
  }
  /// Tokens [B x T, heads x D] with a row stride, seen as [B, heads, T, D].
  void shape_rows(fe::graph::Tensor_attributes& tensor, std::int64_t heads, std::int64_t seq, std::int64_t stride,
                  const AttentionPlanKey& key) {
    tensor.set_dim({key.sequences, heads, seq, key.head_dim}).set_stride({seq * stride, key.head_dim, stride, 1});
    place_documents(tensor, stride, key);
  }
  GraphTensor rows(const char* name, Uid uid, std::int64_t heads, std::int64_t seq, std::int64_t stride,
                   const AttentionPlanKey& key) {
    fe::graph::Tensor_attributes attributes;
    attributes.set_name(name).set_uid(uid);
    shape_rows(attributes, heads, seq, stride, key);
    return graph_.tensor(attributes);
  }
  /// Log-sum-exp in float32, [B, H, T, 1]. In documents the numbers of a token lie side by side: the only order in
  /// which cuDNN packs them.
  void shape_lse(fe::graph::Tensor_attributes& tensor, const AttentionPlanKey& key) {
    const std::int64_t of_head = key.tokens > 0 ? 1 : key.seq_q, of_token = key.tokens > 0 ? key.heads : 1;
    tensor.set_dim({key.sequences, key.heads, key.seq_q, 1})
        .set_stride({key.heads * key.seq_q, of_head, of_token, 1})
        .set_data_type(fe::DataType_t::FLOAT);
    place_documents(tensor, key.heads, key);
  }
  /// Top-left and bottom-right alignment mean the same when q and k are as long, but with bottom-right the backward
  /// pass of cuDNN 9.19 visits the masked half, too: half the speed on an H200.
  template <class Options>
  void set_mask(Options& options, const AttentionPlanKey& key) {
    options.set_causal_mask(true);
    if (key.window > 0) options.set_diagonal_band_left_bound(static_cast<int>(key.window));
    if (key.tokens > 0)
      options.set_padding_mask(true)
          .set_seq_len_q(table("query lengths", kQLengths, key.sequences, fe::DataType_t::INT32))
          .set_seq_len_kv(table("key lengths", kKvLengths, key.sequences, fe::DataType_t::INT32));
  }

  void add_forward(const GraphTensor& q, const GraphTensor& k, const GraphTensor& v, const AttentionPlanKey& key) {
    auto options = fe::graph::SDPA_attributes();
    options.set_name("attention_forward").set_generate_stats(true).set_attn_scale(static_cast<float>(key.scale));
    set_mask(options, key);
    auto [out, lse] = graph_.sdpa(q, k, v, options);
    out->set_output(true).set_uid(kOut);
    shape_rows(*out, key.heads, key.seq_q, key.out_stride, key);
    lse->set_output(true).set_uid(kLse);
    shape_lse(*lse, key);
  }

  void add_backward(const GraphTensor& q, const GraphTensor& k, const GraphTensor& v, const AttentionPlanKey& key) {
    const auto out = rows("out", kOut, key.heads, key.seq_q, key.out_stride, key);
    const auto dout = rows("dout", kDout, key.heads, key.seq_q, key.dout_stride, key);
    fe::graph::Tensor_attributes lse_attributes;
    lse_attributes.set_name("lse").set_uid(kLse);
    shape_lse(lse_attributes, key);
    const auto lse = graph_.tensor(lse_attributes);
    auto options = fe::graph::SDPA_backward_attributes();
    options.set_name("attention_backward")
        .set_attn_scale(static_cast<float>(key.scale))
        .set_deterministic_algorithm(key.deterministic);
    set_mask(options, key);
    if (key.tokens > 0) {
      // Else its sums have room for sequences x seq_q tokens. In whole 64s: what lies behind the sums stays aligned.
      const std::int64_t room = round_up(key.tokens, 64);
      options.set_max_total_seq_len_q(room).set_max_total_seq_len_kv(room);
    }
    auto [dq, dk, dv] = graph_.sdpa_backward(q, k, v, out, dout, lse, options);
    const auto output = [&](const GraphTensor& tensor, Uid uid, std::int64_t heads, std::int64_t seq,
                            std::int64_t stride) {
      tensor->set_output(true).set_uid(uid);
      shape_rows(*tensor, heads, seq, stride, key);
    };
    const std::int64_t own = key.kv_heads * key.head_dim;
    output(dq, kDq, key.heads, key.seq_q, key.dq_stride);
    output(dk, kDk, key.kv_heads, key.seq_kv, key.own_dkv() ? own : key.dk_stride);
    output(dv, kDv, key.kv_heads, key.seq_kv, key.own_dkv() ? own : key.dv_stride);
  }

  fe::graph::Graph graph_;
  std::int64_t workspace_bytes_ = 0;
  std::vector<std::int64_t> row_strides_;
  std::vector<GraphTensor> offsets_;  // by row stride
};

struct AttentionPlans::Impl {
  /// A plan, or why there is none.
  struct Entry {
    std::unique_ptr<AttentionPlan> plan;
    std::string refusal;
  };

  cudnnHandle_t handle = nullptr;
  std::map<AttentionPlanKey, Entry> plans;
  std::shared_ptr<void> workspace;  // cuDNN's, then DocumentScratch
  std::int64_t workspace_bytes = 0;
  Warn warn;  // of the first refusal; empty from then on

  ~Impl() {
    plans.clear();
    if (handle != nullptr) cudnnDestroy(handle);
  }

  const Entry& find(const Context& ctx, const AttentionPlanKey& key) {
    if (handle == nullptr) check(cudnnCreate(&handle), "cudnnCreate");
    check(cudnnSetStream(handle, static_cast<cudaStream_t>(ctx.stream)), "cudnnSetStream");
    const auto [at, fresh] = plans.try_emplace(key);
    Entry& entry = at->second;
    if (!fresh) return entry;
    try {
      entry.plan = std::make_unique<AttentionPlan>(handle, key);
    } catch (const std::exception& error) {
      entry.refusal =
          fmt::format("cuDNN {} has no attention for {}: {}", cudnnGetVersion(), text_of(key), error.what());
    }
    return entry;
  }

  void reserve(const Context& ctx, std::int64_t bytes) {
    if (bytes <= workspace_bytes) return;
    synchronize(ctx);  // a kernel may still use the smaller one
    workspace.reset();
    workspace = allocate(ctx.device, bytes, "cuDNN attention");
    workspace_bytes = bytes;
  }

  void run_documents(const Context& ctx, const AttentionPlan& plan, const AttentionPlanKey& key, Addresses& addresses,
                     const Tensor& q_starts);
};

/// Around the plan: tables before it, lse in and out of cuDNN's order, dk and dv to where they belong.
void AttentionPlans::Impl::run_documents(const Context& ctx, const AttentionPlan& plan, const AttentionPlanKey& key,
                                         Addresses& addresses, const Tensor& q_starts) {
  const std::int64_t before = round_up(plan.workspace_bytes(), kMemoryAlignment);
  reserve(ctx, before + document_scratch(key, nullptr).bytes);
  const DocumentScratch scratch = document_scratch(key, static_cast<char*>(workspace.get()) + before);

  ops::cuda::DocumentTables tables{.starts = q_starts.as<std::int32_t>(),
                                   .documents = q_starts.cols - 1,
                                   .sequences = key.sequences,
                                   .spacing = table_spacing(key.sequences),
                                   .lengths = scratch.lengths,
                                   .offsets = scratch.offsets};
  for (const std::int64_t stride : plan.row_strides()) {
    addresses[kOffsets + tables.strides] = scratch.offsets + tables.strides * tables.spacing;
    tables.row_strides[tables.strides++] = stride;
  }
  addresses[kQLengths] = addresses[kKvLengths] = scratch.lengths;
  ops::cuda::fill_document_tables(ctx, tables);

  const ops::cuda::DocumentLse lse{.starts = tables.starts,
                                   .documents = tables.documents,
                                   .tokens = key.tokens,
                                   .heads = key.heads,
                                   .by_document = static_cast<float*>(addresses[kLse]),
                                   .by_token = scratch.lse};
  addresses[kLse] = scratch.lse;
  if (key.backward) ops::cuda::lse_to_tokens(ctx, lse);
  void *dk = nullptr, *dv = nullptr;
  if (key.own_dkv()) {
    dk = std::exchange(addresses[kDk], scratch.dk);
    dv = std::exchange(addresses[kDv], scratch.dv);
  }

  plan.run(handle, addresses, workspace.get());

  if (!key.backward) ops::cuda::lse_to_documents(ctx, lse);
  if (!key.own_dkv()) return;
  const auto bytes_of = [&](std::int64_t elements) {
    return static_cast<std::size_t>(elements * dtype_size(key.dtype));
  };
  const auto place = [&](void* to, std::int64_t stride, const void* from) {
    const std::size_t row = bytes_of(key.kv_heads * key.head_dim);
    check_cuda(cudaMemcpy2DAsync(to, bytes_of(stride), from, row, row, static_cast<std::size_t>(key.tokens),
                                 cudaMemcpyDeviceToDevice, static_cast<cudaStream_t>(ctx.stream)),
               "cudaMemcpy2DAsync of dk and dv");
  };
  place(dk, key.dk_stride, scratch.dk);
  place(dv, key.dv_stride, scratch.dv);
}

AttentionPlans::AttentionPlans(Warn warn) : impl_(std::make_unique<Impl>()) {
  impl_->warn = std::move(warn);
}
AttentionPlans::~AttentionPlans() = default;

std::int64_t AttentionPlans::workspace_bytes() const {
  return impl_->workspace_bytes;
}

bool AttentionPlans::serves(const Context& ctx, const AttentionPlanKey& key) {
  const Impl::Entry& entry = impl_->find(ctx, key);
  if (entry.plan == nullptr && impl_->warn)
    std::exchange(impl_->warn, {})(fmt::format("{}. Our own attention serves in its place", entry.refusal));
  return entry.plan != nullptr;
}

void AttentionPlans::run(const Context& ctx, const AttentionPlanKey& key, Addresses addresses, const Tensor& q_starts) {
  const Impl::Entry& entry = impl_->find(ctx, key);
  if (entry.plan == nullptr) fail(ExitCode::other, "{}", entry.refusal);
  if (key.tokens > 0) return impl_->run_documents(ctx, *entry.plan, key, addresses, q_starts);
  impl_->reserve(ctx, entry.plan->workspace_bytes());
  entry.plan->run(impl_->handle, addresses, impl_->workspace.get());
}

namespace ops::cuda {
namespace {

/// cuDNN refuses sequences of one token.
bool one_length(const AttentionShape& shape, const Tensor& q, const Tensor& k, const Tensor& q_starts) {
  return shape.max_seq > 1 && shape.max_seq * (q_starts.cols - 1) == q.rows && k.rows == q.rows;
}

/// Nearly every micro-batch has another number of documents and another longest one. Rounded up to powers of two they
/// share a handful of plans. What that adds is empty sequences, and blocks behind the end of a short one, which there
/// are anyway; the sums of the backward pass have room for the tokens, whatever the number of sequences.
template <class Args>
AttentionPlanKey plan_key(const Context& ctx, const Args& args) {
  const AttentionShape& shape = args.shape;
  const bool documents = !one_length(shape, args.q, args.k, args.q_starts);
  const std::int64_t sequences = args.q_starts.cols - 1;
  constexpr std::int64_t kTile = 128;  // rows that a thread block takes, or more: less saves nothing
  const std::int64_t longest = power_of_two(std::max(shape.max_seq, kTile));
  return {.sequences = documents ? power_of_two(sequences) : sequences,
          .seq_q = documents ? longest : args.q.rows / sequences,
          .seq_kv = documents ? longest : args.k.rows / sequences,
          .tokens = documents ? args.q.rows : 0,
          .heads = shape.heads,
          .kv_heads = shape.kv_heads,
          .head_dim = shape.head_dim,
          .window = shape.window,
          .q_stride = args.q.stride,
          .k_stride = args.k.stride,
          .v_stride = args.v.stride,
          .out_stride = args.out.stride,
          .scale = shape.scale,
          .dtype = args.q.dtype,
          .deterministic = ctx.deterministic};
}

AttentionPlanKey key_of(const Context& ctx, const AttentionForwardArgs& args) {
  AttentionPlanKey key = plan_key(ctx, args);
  key.deterministic = false;  // the forward pass always is
  return key;
}

AttentionPlanKey key_of(const Context& ctx, const AttentionBackwardArgs& args) {
  AttentionPlanKey key = plan_key(ctx, args);
  key.backward = true;
  key.dout_stride = args.dout.stride;
  key.dq_stride = args.dq.stride;
  key.dk_stride = args.dk.stride;
  key.dv_stride = args.dv.stride;
  return key;
}

/// cuDNN packs the log-sum-exp of documents from Hopper on; newer cards, and versions before 9.19, are not tried yet.
/// Its deterministic backward pass keeps the gradient of all scores, sequences x heads x seq_q x seq_q of them: too
/// much where one document of many may be long.
bool documents_fit(const Context& ctx, const AttentionShape& shape, const Tensor& q, const Tensor& k,
                   const Tensor& q_starts, const Tensor& kv_starts) {
  constexpr std::size_t kLeastVersion = 91900;
  return has_cudnn_documents(ctx.backend->properties.sm) && cudnnGetVersion() >= kLeastVersion && !ctx.deterministic &&
         cudnn_documents_take_head_dim(shape.head_dim) && q_starts.data == kv_starts.data && q.rows == k.rows &&
         q_starts.cols - 1 <= q.rows;
}

}  // namespace

bool cudnn_attention_fits(const Context& ctx, const AttentionShape& shape, const Tensor& q, const Tensor& k,
                          const Tensor& q_starts, const Tensor& kv_starts) {
  const bool sixteen_bit = q.dtype == Dtype::bf16 || q.dtype == Dtype::f16;
  return has_cudnn_attention(ctx.backend->properties.sm) && sixteen_bit && shape.dropout.p == 0.0 &&
         cudnn_takes_head_dim(shape.head_dim) &&
         (one_length(shape, q, k, q_starts) || documents_fit(ctx, shape, q, k, q_starts, kv_starts));
}

bool cudnn_attention_serves(const Context& ctx, const AttentionForwardArgs& args) {
  return ctx.backend->attention.serves(ctx, key_of(ctx, args));
}

bool cudnn_attention_serves(const Context& ctx, const AttentionBackwardArgs& args) {
  return ctx.backend->attention.serves(ctx, key_of(ctx, args));
}

void cudnn_attention_forward(const Context& ctx, const AttentionForwardArgs& args) {
  ctx.backend->attention.run(
      ctx, key_of(ctx, args),
      {{kQ, args.q.data}, {kK, args.k.data}, {kV, args.v.data}, {kOut, args.out.data}, {kLse, args.lse.data}},
      args.q_starts);
}

void cudnn_attention_backward(const Context& ctx, const AttentionBackwardArgs& args) {
  ctx.backend->attention.run(ctx, key_of(ctx, args),
                             {{kQ, args.q.data},
                              {kK, args.k.data},
                              {kV, args.v.data},
                              {kOut, args.out.data},
                              {kLse, args.lse.data},
                              {kDout, args.dout.data},
                              {kDq, args.dq.data},
                              {kDk, args.dk.data},
                              {kDv, args.dv.data}},
                             args.q_starts);
}

}  // namespace ops::cuda
}  // namespace trainer
