#include "launch/launcher.h"

#include <algorithm>
#include <charconv>
#include <string_view>

#include "core/runtime/check.h"
#include "core/runtime/environment.h"

namespace trainer {
namespace {

template <class T>
std::optional<T> parse(std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

/// The number in a variable of a launcher; 0 when it is not set or not a number.
int number_of(const char* name) {
  return parse<int>(environment_variable(name)).value_or(0);
}

/// A variable of ours: what it says is meant.
template <class T>
T own_number(const char* name, T otherwise, T least, T most) {
  if (environment_variable(name).empty()) return otherwise;
  const auto value = parse<T>(environment_variable(name));
  if (!value || !(*value >= least && *value <= most))  // NaN is neither
    fail(ExitCode::config, "{}: '{}' is not a number from {} to {}", name, environment_variable(name), least, most);
  return *value;
}

struct Place {
  int rank = 0;
  int size = 1;
};

std::optional<Place> own_place() {
  const bool rank = !environment_variable("TRAINER_RANK").empty(),
             size = !environment_variable("TRAINER_WORLD_SIZE").empty();
  if (!rank && !size) return std::nullopt;
  if (rank != size)
    fail(ExitCode::config, "{} is set and {} is not: a rank needs both", rank ? "TRAINER_RANK" : "TRAINER_WORLD_SIZE",
         rank ? "TRAINER_WORLD_SIZE" : "TRAINER_RANK");
  constexpr int kMost = 1 << 20;
  const int ranks = own_number("TRAINER_WORLD_SIZE", 1, 1, kMost);
  return Place{own_number("TRAINER_RANK", 0, 0, ranks - 1), ranks};
}

/// Innermost launcher first: inside a batch script of Slurm, mpirun's ranks see Slurm's variables of the script.
std::optional<Place> place() {
  if (const auto own = own_place()) return own;
  constexpr const char* kNames[][2] = {{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
                                       {"PMI_RANK", "PMI_SIZE"},
                                       {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS"}};
  for (const auto& [rank, size] : kNames)
    if (!environment_variable(rank).empty() && number_of(size) > 0) return Place{number_of(rank), number_of(size)};
  return std::nullopt;
}

/// Slurm's number of the step, which changes with each start.
std::string job_name() {
  if (!environment_variable("TRAINER_JOB_ID").empty()) return std::string(environment_variable("TRAINER_JOB_ID"));
  if (environment_variable("SLURM_JOB_ID").empty()) return "job";
  std::string name = "slurm";
  for (const char* part : {"SLURM_JOB_ID", "SLURM_RESTART_COUNT", "SLURM_STEP_ID"})
    if (!environment_variable(part).empty()) name += fmt::format("-{}", environment_variable(part));
  return name;
}

}  // namespace

std::optional<RendezvousOptions> rendezvous_options() {
  const std::string folder(environment_variable("TRAINER_RENDEZVOUS"));
  if (folder.empty()) {
    if (own_place())
      fail(ExitCode::config, "TRAINER_RANK is set, but TRAINER_RENDEZVOUS names no folder in which the ranks meet");
    return std::nullopt;
  }
  const auto found = place();
  if (!found) return std::nullopt;
  RendezvousOptions options{.folder = folder, .job = job_name(), .rank = found->rank, .size = found->size};
  if (options.job.find('/') != std::string::npos)
    fail(ExitCode::config, "TRAINER_JOB_ID: '{}' is part of a file's name and must hold no '/'", options.job);
  options.timeout_seconds = own_number("TRAINER_RENDEZVOUS_TIMEOUT", options.timeout_seconds, 1.0, 1e6);
  options.port = own_number("TRAINER_RENDEZVOUS_PORT", 0, 0, 65535);
  if (options.port > 0 && options.port + options.size - 1 > 65535)
    fail(ExitCode::config, "TRAINER_RENDEZVOUS_PORT: {} leaves no port for each of {} ranks below 65536", options.port,
         options.size);
  return options;
}

/// mpirun and srun's PMI plug-ins say so themselves. Slurm's own variables do not count: they are also set for a plain
/// process inside a batch script.
bool launched_by_mpi() {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK", "PMI_SIZE"})
    if (!environment_variable(name).empty()) return true;
  const int tasks = number_of("SLURM_STEP_NUM_TASKS");
  if (tasks > 1)
    fail(ExitCode::config,
         "srun started {} tasks without PMIx, so that they cannot find each other: name a folder that all of them see "
         "in TRAINER_RENDEZVOUS, or use srun --mpi=pmix, or mpirun",
         tasks);
  return false;
}

int ranks_of_launcher() {
  return std::max(number_of("OMPI_COMM_WORLD_SIZE"), number_of("PMI_SIZE"));
}

}  // namespace trainer
