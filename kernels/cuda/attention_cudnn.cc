#include "kernels/cuda/attention_cudnn.h"

#include <cudnn.h>
#include <cudnn_frontend.h>

#include <map>

#include "core/runtime/device.h"
#include "kernels/cuda/backend.h"
#include "kernels/shapes.h"

namespace trainer {
namespace {

namespace fe = cudnn_frontend;

/// Names of the tensors of a graph: where execute() finds each address.
enum Uid : std::int64_t { kQ = 1, kK, kV, kOut, kLse, kDout, kDq, kDk, kDv };

void check(cudnnStatus_t status, const char* call) {
  if (status != CUDNN_STATUS_SUCCESS) fail(ExitCode::other, "cuDNN: {}: {}", call, cudnnGetErrorString(status));
}

void check(fe::error_t error, const char* what) {
  if (error.is_bad()) fail(ExitCode::other, "cuDNN attention: {}: {}", what, error.get_message());
}

}  // namespace

/// A compiled graph.
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

  void run(cudnnHandle_t handle, AttentionPlans::Addresses& addresses, void* workspace) const {
    check(graph_.execute(handle, addresses, workspace), "execute");
  }

 private:
  using GraphTensor = std::shared_ptr<fe::graph::Tensor_attributes>;

  /// Tokens [B x T, heads x D] with a row stride, seen as [B, heads, T, D].
  static void shape_rows(fe::graph::Tensor_attributes& tensor, std::int64_t heads, std::int64_t seq,
                         std::int64_t stride, const AttentionPlanKey& key) {
    tensor.set_dim({key.sequences, heads, seq, key.head_dim}).set_stride({seq * stride, key.head_dim, stride, 1});
  }
  GraphTensor rows(const char* name, Uid uid, std::int64_t heads, std::int64_t seq, std::int64_t stride,
                   const AttentionPlanKey& key) {
    fe::graph::Tensor_attributes attributes;
    attributes.set_name(name).set_uid(uid);
    shape_rows(attributes, heads, seq, stride, key);
    return graph_.tensor(attributes);
  }
  /// Log-sum-exp in float32, [B, H, T, 1].
  static void shape_lse(fe::graph::Tensor_attributes& tensor, const AttentionPlanKey& key) {
    tensor.set_dim({key.sequences, key.heads, key.seq_q, 1})
        .set_stride({key.heads * key.seq_q, key.seq_q, 1, 1})
        .set_data_type(fe::DataType_t::FLOAT);
  }
  /// Top-left and bottom-right alignment mean the same when q and k are as long, but with bottom-right the backward
  /// pass of cuDNN 9.19 visits the masked half, too: half the speed on an H200.
  template <class Options>
  static void set_mask(Options& options, const AttentionPlanKey& key) {
    options.set_causal_mask(true);
    if (key.window > 0) options.set_diagonal_band_left_bound(static_cast<int>(key.window));
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
    auto [dq, dk, dv] = graph_.sdpa_backward(q, k, v, out, dout, lse, options);
    const auto output = [&](const GraphTensor& tensor, Uid uid, std::int64_t heads, std::int64_t seq,
                            std::int64_t stride) {
      tensor->set_output(true).set_uid(uid);
      shape_rows(*tensor, heads, seq, stride, key);
    };
    output(dq, kDq, key.heads, key.seq_q, key.dq_stride);
    output(dk, kDk, key.kv_heads, key.seq_kv, key.dk_stride);
    output(dv, kDv, key.kv_heads, key.seq_kv, key.dv_stride);
  }

  fe::graph::Graph graph_;
  std::int64_t workspace_bytes_ = 0;
};

struct AttentionPlans::Impl {
  cudnnHandle_t handle = nullptr;
  std::map<AttentionPlanKey, std::unique_ptr<AttentionPlan>> plans;
  std::shared_ptr<void> workspace;
  std::int64_t workspace_bytes = 0;

  ~Impl() {
    plans.clear();
    if (handle != nullptr) cudnnDestroy(handle);
  }
};

AttentionPlans::AttentionPlans() : impl_(std::make_unique<Impl>()) {}
AttentionPlans::~AttentionPlans() = default;

std::int64_t AttentionPlans::workspace_bytes() const {
  return impl_->workspace_bytes;
}

void AttentionPlans::run(const Context& ctx, const AttentionPlanKey& key, Addresses addresses) {
  Impl& impl = *impl_;
  if (impl.handle == nullptr) check(cudnnCreate(&impl.handle), "cudnnCreate");
  check(cudnnSetStream(impl.handle, static_cast<cudaStream_t>(ctx.stream)), "cudnnSetStream");
  std::unique_ptr<AttentionPlan>& plan = impl.plans[key];
  if (plan == nullptr) {
    plan = std::make_unique<AttentionPlan>(impl.handle, key);
    if (plan->workspace_bytes() > impl.workspace_bytes) {
      synchronize(ctx);  // a kernel may still use the smaller one
      impl.workspace.reset();
      impl.workspace = allocate(ctx.device, plan->workspace_bytes(), "cuDNN attention");
      impl.workspace_bytes = plan->workspace_bytes();
    }
  }
  plan->run(impl.handle, addresses, impl.workspace.get());
}

namespace ops::cuda {
namespace {

AttentionPlanKey plan_key(const Context& ctx, const AttentionShape& shape, const Tensor& q, const Tensor& k,
                          const Tensor& v, const Tensor& out, const Tensor& q_starts) {
  const std::int64_t sequences = q_starts.cols - 1;
  return {.sequences = sequences,
          .seq_q = q.rows / sequences,
          .seq_kv = k.rows / sequences,
          .heads = shape.heads,
          .kv_heads = shape.kv_heads,
          .head_dim = shape.head_dim,
          .window = shape.window,
          .q_stride = q.stride,
          .k_stride = k.stride,
          .v_stride = v.stride,
          .out_stride = out.stride,
          .scale = shape.scale,
          .dtype = q.dtype,
          .deterministic = ctx.deterministic};
}

}  // namespace

bool cudnn_attention_fits(const Context& ctx, const AttentionShape& shape, const Tensor& q, const Tensor& q_starts,
                          const Tensor& k) {
  const std::int64_t sequences = q_starts.cols - 1;
  // cuDNN refuses sequences of one token.
  const bool one_length = shape.max_seq > 1 && shape.max_seq * sequences == q.rows && k.rows == q.rows;
  const bool sixteen_bit = q.dtype == Dtype::bf16 || q.dtype == Dtype::f16;
  return ctx.backend->properties.sm >= 80 && sixteen_bit && one_length && shape.dropout.p == 0.0 &&
         shape.head_dim % 8 == 0 && shape.head_dim <= 128;
}

void cudnn_attention_forward(const Context& ctx, const AttentionForwardArgs& args) {
  AttentionPlanKey key = plan_key(ctx, args.shape, args.q, args.k, args.v, args.out, args.q_starts);
  key.deterministic = false;  // the forward pass always is
  ctx.backend->attention.run(
      ctx, key,
      {{kQ, args.q.data}, {kK, args.k.data}, {kV, args.v.data}, {kOut, args.out.data}, {kLse, args.lse.data}});
}

void cudnn_attention_backward(const Context& ctx, const AttentionBackwardArgs& args) {
  AttentionPlanKey key = plan_key(ctx, args.shape, args.q, args.k, args.v, args.out, args.q_starts);
  key.backward = true;
  key.dout_stride = args.dout.stride;
  key.dq_stride = args.dq.stride;
  key.dk_stride = args.dk.stride;
  key.dv_stride = args.dv.stride;
  ctx.backend->attention.run(ctx, key,
                             {{kQ, args.q.data},
                              {kK, args.k.data},
                              {kV, args.v.data},
                              {kOut, args.out.data},
                              {kLse, args.lse.data},
                              {kDout, args.dout.data},
                              {kDq, args.dq.data},
                              {kDk, args.dk.data},
                              {kDv, args.dv.data}});
}

}  // namespace ops::cuda
}  // namespace trainer
