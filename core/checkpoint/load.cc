#include "core/checkpoint/load.h"

#include <fmt/format.h>

#include <cstring>
#include <map>

#include "core/checkpoint/agreement.h"
#include "core/checkpoint/piece_reader.h"

namespace trainer {
namespace {

using namespace checkpoint;

/// What a stored piece gives to a wanted one.
struct Transfer {
  const Piece* to;
  Box common;
};
struct Job {
  const std::string* tensor;
  const StoredPiece* from;
  std::vector<Transfer> transfers;
};
/// By file and offset, so that files are read from front to back.
using Jobs = std::map<std::pair<std::string, std::int64_t>, Job>;

void add_jobs(Jobs& jobs, const CheckpointInfo& info, const Piece& wanted) {
  const auto found = info.manifest.tensors.find(wanted.tensor);
  if (found == info.manifest.tensors.end())
    fail(ExitCode::checkpoint, "the run needs tensor '{}' {}, which the checkpoint {} does not hold", wanted.tensor,
         to_text(wanted.global), info.path);
  const auto& [name, tensor] = *found;
  if (tensor.shape != wanted.global || tensor.dtype != wanted.dtype)
    fail(ExitCode::checkpoint, "the run needs tensor '{}' as {} {}, the checkpoint {} holds {} {}", name,
         dtype_name(wanted.dtype), to_text(wanted.global), info.path, dtype_name(tensor.dtype), to_text(tensor.shape));
  TRAINER_CHECK(wanted.write, "piece of '{}' without a write function", name);
  std::int64_t found_elements = 0;
  for (const StoredPiece& stored : tensor.pieces) {
    const Box common = intersect(stored.box, wanted.box);
    if (common.numel() == 0) continue;
    found_elements += common.numel();
    jobs.try_emplace({stored.file, stored.offset}, Job{&name, &stored, {}})
        .first->second.transfers.push_back({&wanted, common});
  }
  TRAINER_CHECK(found_elements == wanted.box.numel(), "'{}' {}: {} is not inside it", name, to_text(tensor.shape),
                to_text(wanted.box));
}

/// Hands the common box over in as few calls as its order in the wanted box allows: one where it has whole rows of it.
void transfer(const Job& job, const Transfer& transfer, const std::byte* data, std::vector<std::byte>& packed) {
  const Box& common = transfer.common;
  const Box& from = job.from->box;
  const Box& to = transfer.to->box;
  const std::int64_t element = dtype_size(transfer.to->dtype);
  const auto source = [&](std::int64_t row) {
    return data + ((common.row0 + row - from.row0) * from.cols + common.col0 - from.col0) * element;
  };
  const auto target = [&](std::int64_t row) { return (common.row0 + row - to.row0) * to.cols + common.col0 - to.col0; };
  if (common.cols < to.cols) {
    for (std::int64_t row = 0; row < common.rows; ++row) transfer.to->write(target(row), common.cols, source(row));
    return;
  }
  if (common.cols == from.cols) {
    transfer.to->write(target(0), common.numel(), source(0));
    return;
  }
  const auto row_bytes = static_cast<std::size_t>(common.cols * element);
  packed.resize(static_cast<std::size_t>(common.rows) * row_bytes);
  for (std::int64_t row = 0; row < common.rows; ++row)
    std::memcpy(packed.data() + static_cast<std::size_t>(row) * row_bytes, source(row), row_bytes);
  transfer.to->write(target(0), common.numel(), packed.data());
}

}  // namespace

void load_pieces(const CheckpointInfo& info, const std::vector<Piece>& wanted, Communicator& host_world) {
  Jobs jobs;
  run_together(host_world, [&] {
    for (const Piece& piece : wanted)
      if (piece.box.numel() > 0) add_jobs(jobs, info, piece);
  });
  run_together(host_world, [&] {
    PieceReader reader(info.path);
    std::vector<std::byte> packed;
    for (const auto& [place, job] : jobs) {
      const std::byte* data = reader.read(*job.tensor, *job.from);
      for (const Transfer& part : job.transfers) transfer(job, part, data, packed);
    }
  });
}

}  // namespace trainer
