#include "core/runtime/phase_times.h"

#include <fmt/format.h>
#include <time.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

namespace trainer {
namespace {

/// Seconds that this process has existed, by the kernel's account (to 10 ms); 0 where it keeps none.
double process_age() {
  std::ifstream file("/proc/self/stat");
  std::string line;
  std::getline(file, line);
  const std::size_t name_end = line.rfind(')');  // the name may hold spaces
  timespec now{};
  if (name_end == std::string::npos || clock_gettime(CLOCK_BOOTTIME, &now) != 0) return 0.0;
  std::istringstream fields(line.substr(name_end + 1));
  std::string field;
  constexpr int kFieldsToStartTime = 20;  // after the name: from the state, field 3, to field 22
  for (int i = 0; i < kFieldsToStartTime; ++i) fields >> field;
  const double since_boot = static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
  const double ticks = std::atof(field.c_str());
  const double age = since_boot - ticks / static_cast<double>(sysconf(_SC_CLK_TCK));
  constexpr double kCredible = 3600;  // sandboxes may count from another zero
  return ticks > 0 && age >= 0 && age < kCredible ? age : 0.0;
}

double seconds_between(std::chrono::steady_clock::time_point from, std::chrono::steady_clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

}  // namespace

PhaseTimes::PhaseTimes()
    : process_start_(Clock::now() -
                     std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(process_age()))),
      phase_start_(process_start_) {}

void PhaseTimes::end(std::string_view phase) {
  const Clock::time_point now = Clock::now();
  phases_.emplace_back(phase, seconds_between(phase_start_, now));
  phase_start_ = now;
}

double PhaseTimes::seconds() const {
  return seconds_between(process_start_, Clock::now());
}

std::string PhaseTimes::text() const {
  std::string text;
  for (const auto& [name, seconds] : phases_)
    text += fmt::format("{}{} {:.2f} s", text.empty() ? "" : ", ", name, seconds);
  return text;
}

}  // namespace trainer
