// Host memory and ops: on the CPU they share it, on CUDA the workspace stands between.
#include "core/runtime/check.h"
#include "core/runtime/device.h"

namespace trainer {
namespace {

void* workspace_of(const Context& ctx, std::int64_t bytes) {
  TRAINER_CHECK(bytes <= ctx.workspace_bytes, "{} bytes to stage in a workspace of {}", bytes, ctx.workspace_bytes);
  return ctx.workspace;
}

}  // namespace

void* stage_in(const Context& ctx, const void* host, std::int64_t bytes) {
  if (ctx.device.kind == DeviceKind::cpu)
    return const_cast<void*>(host);  // ops read their inputs; Tensor has no const form
  void* staged = workspace_of(ctx, bytes);
  copy_to_device(ctx, staged, host, bytes);
  synchronize(ctx);  // the caller may change its memory
  return staged;
}

void* stage_for_output(const Context& ctx, void* host, std::int64_t bytes) {
  return ctx.device.kind == DeviceKind::cpu ? host : workspace_of(ctx, bytes);
}

void stage_out(const Context& ctx, const void* staged, void* host, std::int64_t bytes) {
  if (ctx.device.kind == DeviceKind::cpu) return;
  copy_to_host(ctx, host, staged, bytes);
  synchronize(ctx);
}

}  // namespace trainer
