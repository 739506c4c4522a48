// Writes what tests/tools/read_tensorboard.py expects to read: a run of 20 steps, and a resume from step 10.
#include <fmt/format.h>

#include <thread>

#include "core/train/reporting/tensorboard.h"

namespace {

void write_steps(trainer::TensorBoardWriter& writer, std::int64_t first, std::int64_t last, double loss_at_zero) {
  for (std::int64_t step = first; step <= last; ++step) {
    trainer::StepRecord record;
    record.step = step;
    record.time = 1.7e9 + static_cast<double>(step);
    record.loss = loss_at_zero - static_cast<double>(step);
    record.tokens_per_second = 1000;
    writer.append(record);
  }
  writer.flush();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    fmt::print(stderr, "usage: write_tensorboard FOLDER\n");
    return 2;
  }
  {
    trainer::TensorBoardWriter writer(argv[1], 0);
    write_steps(writer, 1, 20, 100);
  }
  // A file's name holds the second of its start, and a resume comes later than that.
  std::this_thread::sleep_for(std::chrono::milliseconds(1100));
  trainer::TensorBoardWriter writer(argv[1], 10);
  write_steps(writer, 11, 15, 200);
  return 0;
}
