#include "core/train/gemm_cache.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "core/runtime/check.h"
#include "core/runtime/device.h"
#include "core/runtime/environment.h"
#include "kernels/gemm_choices.h"
#include "parallel/host_exchange.h"

namespace trainer {

std::string gemm_cache_path() {
  const std::string own(environment_variable("TRAINER_CACHE_DIR")), xdg(environment_variable("XDG_CACHE_HOME")),
      home(environment_variable("HOME"));
  if (!own.empty()) return own + "/gemm_choices.txt";
  if (!xdg.empty()) return xdg + "/trainer/gemm_choices.txt";
  if (!home.empty()) return home + "/.cache/trainer/gemm_choices.txt";
  return {};
}

std::string read_gemm_cache(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

bool add_to_gemm_cache(const std::string& path, const std::string& choices) {
  if (path.empty()) return false;
  const std::string known = read_gemm_cache(path);
  std::istringstream known_lines(known), new_lines(choices);
  std::set<std::string> lines;
  for (std::string line; std::getline(known_lines, line);) lines.insert(line);
  std::string added;
  for (std::string line; std::getline(new_lines, line);)
    if (lines.insert(line).second) added += line + '\n';
  if (added.empty()) return true;
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), error);
  const std::string temporary = fmt::format("{}.{}", path, getpid());
  {
    std::ofstream file(temporary);
    file << known << added;
    if (!file.flush()) return false;
  }
  std::filesystem::rename(temporary, path, error);
  return !error;
}

std::string warm_up_remembering(Engine& engine, const MicroBatch& batch) {
  const Context& ctx = engine.context();
  Communicator& world = engine.mesh().world();
  const bool lead = world.rank() == 0;
  const std::string path = gemm_cache_path(), given = gemm_choices(ctx);
  use_gemm_choices(ctx, broadcast_string(world, lead ? read_gemm_cache(path) : std::string(), 0));
  use_gemm_choices(ctx, given);
  engine.warm_up(batch);
  synchronize(ctx);
  if (!lead || add_to_gemm_cache(path, gemm_choices(ctx))) return {};
  return fmt::format("cannot keep the GEMM choices in '{}'; the next start times them again", path);
}

}  // namespace trainer
