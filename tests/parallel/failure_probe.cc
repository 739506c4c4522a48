// A program as a training run is: collectives in a loop, TERM and USR1 handled. failure_test.sh breaks it in many ways
// (TRAINER_FAULT with step = number of the round) and looks at what is left.
//   failure_probe MARKER TIMEOUT_SECONDS ROUNDS EXIT_CODE
#include <csignal>
#include <cstdlib>
#include <vector>

#include "launch/bootstrap.h"

namespace trainer {
namespace {

std::atomic<bool>& stop_flag() {
  static std::atomic<bool> stop{false};
  return stop;
}

ExitCode run_rounds(Bootstrap& bootstrap, char** argv) {
  std::signal(SIGTERM, [](int) { stop_flag() = true; });
  FaultPlan fault = FaultPlan::from_environment();
  fault.set_rank(bootstrap.rank(), bootstrap.size());
  fault.set_step(-1);
  const std::unique_ptr<Communicator> world =
      bootstrap.world({.timeout_seconds = std::atof(argv[2]), .fault = &fault, .stop = &stop_flag()});
  const std::unique_ptr<Communicator> group = world->split(0, bootstrap.rank(), "dp");
  std::vector<float> data(10007);
  const int rounds = std::atoi(argv[3]);
  for (int round = 1; round <= rounds; ++round) {
    fault.set_step(round);
    bootstrap.step() = round;
    group->all_reduce({}, tensor_over(data.data(), Dtype::f32, 1, static_cast<std::int64_t>(data.size())),
                      ReduceOp::sum);
  }
  return static_cast<ExitCode>(std::atoi(argv[4]));
}

}  // namespace
}  // namespace trainer

int main(int argc, char** argv) {
  if (argc != 5) return static_cast<int>(trainer::ExitCode::config);
  return trainer::run_reporting_errors(
      argc, argv, [&](trainer::Bootstrap& bootstrap) { return trainer::run_rounds(bootstrap, argv); });
}
