#include "core/checkpoint/piece.h"

#include <fmt/format.h>

#include <algorithm>

namespace trainer {

std::string to_text(const TensorShape& shape) {
  return shape.dims == 1 ? fmt::format("[{}]", shape.rows) : fmt::format("[{}, {}]", shape.rows, shape.cols);
}

std::string to_text(const Box& box) {
  return fmt::format("rows {}..{}, columns {}..{}", box.row0, box.row0 + box.rows - 1, box.col0,
                     box.col0 + box.cols - 1);
}

Box intersect(const Box& a, const Box& b) {
  Box common;
  common.row0 = std::max(a.row0, b.row0);
  common.col0 = std::max(a.col0, b.col0);
  common.rows = std::max<std::int64_t>(0, std::min(a.row0 + a.rows, b.row0 + b.rows) - common.row0);
  common.cols = std::max<std::int64_t>(0, std::min(a.col0 + a.cols, b.col0 + b.cols) - common.col0);
  return common;
}

}  // namespace trainer
