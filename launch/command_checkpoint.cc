#include "core/checkpoint/load.h"
#include "launch/commands.h"
#include "parallel/self_communicator.h"

namespace trainer {

ExitCode command_checkpoint(const std::string& what, const std::string& path) {
  const CheckpointInfo info = read_checkpoint_info(path);
  fmt::print("{}", describe(info));
  if (what == "show") return ExitCode::ok;
  SelfCommunicator self("self");
  if (const auto damage = verify_checkpoint(info, self)) fail(ExitCode::checkpoint, "{}", *damage);
  fmt::print("every checksum matches\n");
  return ExitCode::ok;
}

}  // namespace trainer
