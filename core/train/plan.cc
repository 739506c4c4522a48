#include "core/train/plan.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <numeric>
#include <utility>

#include "core/runtime/attention_support.h"
#include "core/runtime/check.h"
#include "core/runtime/counted.h"
#include "core/runtime/divide.h"
#include "core/train/engine_parts.h"
#include "core/train/reporting/tables.h"
#include "parallel/job.h"
#include "parallel/plan_communicator.h"

namespace trainer {
namespace {

constexpr std::int64_t kMiB = std::int64_t{1} << 20;

/// CUDA's own: context, code of our kernels and of the libraries, their handles. Measured on an H200 with CUDA 13.
constexpr std::int64_t kCudaContext = 560 * kMiB;

/// NCCL's code and the buffers of a rank's first communicator. Measured on two H200s with NCCL 2.28, alike for data
/// parallelism (ZeRO 0, 1 and 3) and tensor parallelism.
constexpr std::int64_t kFirstCommunicator = 1376 * kMiB;
/// Buffers of each further one. Not measured: an estimate, on the safe side, that leaves the code to the first.
constexpr std::int64_t kFurtherCommunicator = 1024 * kMiB;

/// Communicators of a rank: a group with all ranks of the one that it is split from shares that one's
/// (parallel/nccl_communicator.cc).
int communicators(const Mesh& mesh) {
  const auto own = [](const Communicator& group, const Communicator& parent) {
    return group.size() > 1 && group.size() < parent.size() ? 1 : 0;
  };
  return (mesh.world().size() > 1 ? 1 : 0) + own(mesh.tp(), mesh.world()) + own(mesh.dp(), mesh.world()) +
         own(mesh.zero(), mesh.dp()) + own(mesh.zero_replicas(), mesh.dp()) + own(mesh.kv_replicas(), mesh.tp());
}

/// What cuDNN's backward pass keeps for documents (kernels/cuda/attention_cudnn.cc): dQ in float32, in rows as wide as
/// those of qkv; a float32 sum for each row; where query heads share key/value heads, dK and dV of every query head in
/// as much room as float32 takes, and rows of their own for dk and dv. And tables of documents, and log-sum-exp in
/// cuDNN's order.
std::int64_t document_scratch(const ModelShape& shape) {
  constexpr std::int64_t kTables = 80;  // bytes of a document
  const std::int64_t sums = dtype_size(Dtype::f32) * (shape.qkv_cols() + 2 * shape.heads);
  const std::int64_t shared = shape.heads != shape.kv_heads ? 2 * dtype_size(Dtype::f32) * shape.q_cols() +
                                                                  2 * dtype_size(shape.dtype) * shape.kv_cols()
                                                            : 0;
  return shape.tokens * (sums + shared + kTables);
}

/// What cuDNN's fused backward pass keeps: dQ in float32 while its parts are added, or, where the order of addition is
/// fixed, the gradient of all scores of all heads in 16 bits; a float32 sum for each row; and, where query heads share
/// key/value heads, dK and dV of every query head in 16 bits. As measured with cuDNN 9 on an H200.
std::int64_t attention_scratch(const Config& config, const ModelShape& shape, int sm) {
  const bool served = has_cudnn_attention(sm) && config.train.attention != AttentionChoice::builtin &&
                      config.model.attention_dropout == 0 && cudnn_takes_head_dim(shape.head_dim);
  if (!served || dtype_size(shape.dtype) != 2) return 0;
  if (config.data.intra_document_attention && has_cudnn_documents(sm) && cudnn_documents_take_head_dim(shape.head_dim))
    return document_scratch(shape);
  constexpr std::int64_t kTile = 64;
  const std::int64_t length = round_up(shape.seq_length, kTile);
  const std::int64_t head_elements = shape.tokens * shape.heads * shape.head_dim;
  const std::int64_t scores = shape.sequences * shape.heads * length * length * dtype_size(shape.dtype);
  const std::int64_t parts = config.train.deterministic ? scores : head_elements * dtype_size(Dtype::f32);
  const std::int64_t shared = shape.heads != shape.kv_heads ? 2 * head_elements * dtype_size(shape.dtype) : 0;
  return parts + shape.tokens * shape.heads * dtype_size(Dtype::f32) + shared;
}

std::vector<MemoryReserve> gpu_reserves(const Config& config, const Mesh& mesh, const ModelShape& shape, int sm) {
  std::vector<MemoryReserve> reserves = {{"CUDA context", kCudaContext, true},
                                         {"kernel workspace", DeviceContext::kDefaultWorkspace, true}};
  if (const std::int64_t bytes = attention_scratch(config, shape, sm); bytes > 0)
    reserves.push_back({"attention workspace", bytes, false});
  if (const int count = communicators(mesh); count > 0) {
    reserves.push_back({"NCCL", kFirstCommunicator + (count - 1) * kFurtherCommunicator, true});
    // Beside other groups, that of all ranks carries single numbers only.
    if (config.comm.peer_copies) reserves.push_back({"peer copies", std::max(1, count - 1) * kPeerScratchBytes, false});
  }
  return reserves;
}

DeviceKind planned_device(const Config& config) {
  const bool cpu = config.train.device == DeviceChoice::cpu || config.precision.dtype == Precision::float64;
  return cpu ? DeviceKind::cpu : DeviceKind::cuda;
}

}  // namespace

std::int64_t MemoryEstimate::arena_bytes() const {
  return std::accumulate(classes.begin(), classes.end(), std::int64_t{0}) - host_bytes();
}

std::int64_t MemoryEstimate::total_bytes() const {
  std::int64_t sum = arena_bytes();
  for (const MemoryReserve& reserve : reserves) sum += reserve.bytes;
  return sum;
}

MemoryEstimate plan_memory(const Config& config, const Mesh& mesh, DeviceKind device, int sm) {
  Arena measuring;
  CommQueue no_queue({}, /*overlap=*/false);
  const EngineParts parts(config, mesh, no_queue, measuring);
  MemoryEstimate estimate{
      .classes = measuring.plan(), .buffers = measuring.largest(), .parameters = parts.model.layout().numel()};
  std::erase_if(estimate.buffers, [](const Arena::Buffer& b) { return b.memory_class == MemoryClass::host; });
  if (device == DeviceKind::cuda) estimate.reserves = gpu_reserves(config, mesh, parts.model.shape(), sm);
  return estimate;
}

MemoryEstimate plan_memory(const Config& config, int rank, int sm) {
  const MeshShape shape = mesh_shape(config);
  return plan_memory(config, Mesh(std::make_unique<PlanCommunicator>(rank, shape), shape), planned_device(config), sm);
}

FullestRank fullest_rank(const Config& config, int sm) {
  const MeshShape shape = mesh_shape(config);
  FullestRank fullest{0, plan_memory(config, 0, sm)};
  for (int rank = 1; rank < shape.tp * shape.dp; ++rank) {
    MemoryEstimate estimate = plan_memory(config, rank, sm);
    const std::int64_t more = estimate.total_bytes() - fullest.estimate.total_bytes();
    fullest.all_equal = fullest.all_equal && more == 0;
    if (more > 0) fullest = {rank, std::move(estimate), false};
  }
  return fullest;
}

std::string memory_table(const MemoryEstimate& estimate) {
  Table table("Memory of a rank");
  for (int c = 0; c < kMemoryClasses; ++c) {
    const std::int64_t bytes = estimate.classes[static_cast<std::size_t>(c)];
    if (bytes > 0 && static_cast<MemoryClass>(c) != MemoryClass::host)
      table.row({std::string(memory_class_name(static_cast<MemoryClass>(c))), format_bytes(bytes)});
  }
  for (const MemoryReserve& reserve : estimate.reserves) table.row({reserve.name, format_bytes(reserve.bytes)});
  table.row({"sum", format_bytes(estimate.total_bytes())});
  if (estimate.host_bytes() > 0) table.row({"pinned, on the host", format_bytes(estimate.host_bytes())});
  return table.text();
}

std::string largest_table(const Config& config, const MemoryEstimate& estimate) {
  Table table("Largest buffers", {"buffer", "bytes", "what makes it smaller"});
  for (std::size_t i = 0; i < std::min<std::size_t>(3, estimate.buffers.size()); ++i) {
    const Arena::Buffer& buffer = estimate.buffers[i];
    table.row({buffer.name, format_bytes(buffer.bytes), shrink_advice(config, buffer)});
  }
  return table.text();
}

std::string plan_check(const MemoryEstimate& estimate, std::int64_t used_bytes) {
  const std::int64_t off = used_bytes - estimate.total_bytes();
  const double share = static_cast<double>(off) / static_cast<double>(estimate.total_bytes());
  const bool holds = std::abs(off) <= kPlanTolerance || std::abs(share) <= 0.03;
  return fmt::format("memory: {} planned, {} in use on the card ({:+.1f} %, {:+} MiB): {} 3 % or 512 MiB",
                     format_bytes(estimate.total_bytes()), format_bytes(used_bytes), 100 * share, off / kMiB,
                     holds ? "within" : "NOT within");
}

void check_fits(const Config& config, const MemoryEstimate& estimate, int rank, std::int64_t free_bytes,
                std::int64_t used_bytes) {
  std::int64_t taken = 0;
  for (const MemoryReserve& reserve : estimate.reserves)
    if (reserve.taken_first) taken += reserve.bytes;
  const std::int64_t needed = estimate.total_bytes() - std::min(taken, used_bytes);
  if (needed <= free_bytes) return;
  std::string holders;
  for (std::size_t i = 0; i < std::min<std::size_t>(3, estimate.buffers.size()); ++i) {
    const Arena::Buffer& buffer = estimate.buffers[i];
    holders += fmt::format("\n  {} ({}): smaller with {}", buffer.name, format_bytes(buffer.bytes),
                           shrink_advice(config, buffer));
  }
  fail(ExitCode::memory,
       "rank {} does not fit: it needs {} ({} bytes), and {} ({} bytes) are free on its GPU. The largest of it:{}\n"
       "`trainer plan` shows the whole table without a GPU",
       rank, format_bytes(needed), needed, format_bytes(free_bytes), free_bytes, holders);
}

std::int64_t host_ram_bytes() {
  const std::int64_t physical = static_cast<std::int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  std::ifstream limit("/sys/fs/cgroup/memory.max");  // "max" where the container has none
  std::int64_t allowed = 0;
  return limit >> allowed ? std::min(allowed, physical) : physical;
}

std::string host_memory_note(const MemoryEstimate& estimate, int ranks, std::int64_t ram_bytes) {
  if (estimate.host_bytes() == 0) return {};
  const std::int64_t together = ranks * estimate.host_bytes();
  return fmt::format("{} of the host's memory are pinned, {} together; this host has {}{}", format_bytes(together),
                     counted(ranks, "rank"), format_bytes(ram_bytes), together <= ram_bytes ? "" : ": too little");
}

void check_host_fits(const MemoryEstimate& estimate, int ranks, std::int64_t ram_bytes) {
  if (ranks * estimate.host_bytes() > ram_bytes)
    fail(ExitCode::memory, "optimizer.offload: {}; right would be fewer ranks on each host, or offload: false",
         host_memory_note(estimate, ranks, ram_bytes));
}

}  // namespace trainer
