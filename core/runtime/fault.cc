#include "core/runtime/fault.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <iterator>
#include <limits>
#include <thread>

#include "core/runtime/check.h"
#include "core/runtime/counted.h"
#include "core/runtime/environment.h"

namespace trainer {
namespace {

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (!text.empty()) {
    const std::size_t end = text.find(separator);
    if (end != 0) parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) break;
    text.remove_prefix(end + 1);
  }
  return parts;
}

template <class T>
T number(std::string_view text, std::string_view what, T least) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size())
    fail(ExitCode::config, "TRAINER_FAULT: {} '{}' is not a number", what, text);
  if (!(value >= least)) fail(ExitCode::config, "TRAINER_FAULT: {} {} is below {}", what, text, least);
  return value;
}

/// Where the program asks at().
constexpr std::string_view kSites[] = {"step",       "forward",    "gradients",    "optimizer", "evaluate",
                                       "save.begin", "save.write", "save.publish", "load",      "collective"};

struct Action {
  std::string_view name;
  std::string_view argument = "";   // what must follow its colon; empty: nothing may
  std::string_view only_site = "";  // empty: any
  double most = 0;                  // of the argument
};
constexpr Action kActions[] = {{"throw"},
                               {"exit", "CODE", "", 255},
                               {"kill"},
                               {"stop"},
                               {"sleep", "SECONDS", "", 1e6},
                               {"inf", "", "gradients"},
                               {"nan", "", "gradients"},
                               {"count", "", "collective"}};

/// Done by the place itself, which asks poison() or wrong_count().
bool is_asked_for(std::string_view action) {
  return action == "inf" || action == "nan" || action == "count";
}

std::string action_names() {
  std::string names;
  for (const Action& action : kActions) {
    names += fmt::format("{}{}", names.empty() ? "" : ", ", action.name);
    if (!action.argument.empty()) names += fmt::format(":{}", action.argument);
  }
  return names;
}

/// A fault that would never happen, or not as meant, is refused: whoever plans one wants to see it.
void check_fault(std::string_view site, std::string_view name, std::optional<double> argument, bool at_a_step,
                 std::string_view item) {
  if (site.empty()) fail(ExitCode::config, "TRAINER_FAULT: '{}' names no site ({})", item, fmt::join(kSites, ", "));
  if (name.empty()) fail(ExitCode::config, "TRAINER_FAULT: '{}' names no action ({})", item, action_names());
  if (std::find(std::begin(kSites), std::end(kSites), site) == std::end(kSites))
    fail(ExitCode::config, "TRAINER_FAULT: unknown site '{}' ({})", site, fmt::join(kSites, ", "));
  const auto* const action =
      std::find_if(std::begin(kActions), std::end(kActions), [&](const Action& a) { return a.name == name; });
  if (action == std::end(kActions))
    fail(ExitCode::config, "TRAINER_FAULT: unknown action '{}' ({})", name, action_names());
  if (argument.has_value() == action->argument.empty())
    fail(ExitCode::config, "TRAINER_FAULT: action '{}' {}", name,
         argument ? "takes no argument" : fmt::format("needs an argument: {}:{}", name, action->argument));
  if (argument && !(*argument <= action->most && (name != "exit" || *argument == std::floor(*argument))))
    fail(ExitCode::config, "TRAINER_FAULT: '{}:{}': right would be {} from 0 to {}", name, *argument,
         name == "exit" ? "a whole number" : "a number", action->most);
  if (!action->only_site.empty() && site != action->only_site)
    fail(ExitCode::config, "TRAINER_FAULT: action '{}' does nothing at site '{}', only at '{}'", name, site,
         action->only_site);
  if (at_a_step && site == "load")
    fail(ExitCode::config, "TRAINER_FAULT: 'load' comes before the first step: leave 'step' out of '{}'", item);
}

}  // namespace

FaultPlan FaultPlan::parse(std::string_view text) {
  FaultPlan plan;
  for (const std::string_view item : split(text, ';')) {
    Fault fault{.text = std::string(item)};
    std::optional<double> argument;
    for (const std::string_view pair : split(item, ',')) {
      const std::size_t equals = pair.find('=');
      if (equals == std::string_view::npos) fail(ExitCode::config, "TRAINER_FAULT: '{}' is not key=value", pair);
      const std::string_view key = pair.substr(0, equals);
      std::string_view value = pair.substr(equals + 1);
      if (key == "rank") {
        fault.rank = number(value, key, /*least=*/0);
      } else if (key == "step") {
        fault.step = number(value, key, /*least=*/std::int64_t{1});
      } else if (key == "site") {
        fault.site = value;
      } else if (key == "tensor") {
        fault.tensor = value;
      } else if (key == "action") {
        const std::size_t colon = value.find(':');
        if (colon != std::string_view::npos) {
          argument = number(value.substr(colon + 1), "the argument of an action", /*least=*/0.0);
          fault.argument = *argument;
          value = value.substr(0, colon);
        }
        fault.action = value;
      } else {
        fail(ExitCode::config, "TRAINER_FAULT: unknown key '{}' (rank, step, site, action, tensor)", key);
      }
    }
    check_fault(fault.site, fault.action, argument, fault.step.has_value(), item);
    plan.faults_.push_back(fault);
  }
  return plan;
}

FaultPlan FaultPlan::from_environment() {
  return parse(environment_variable("TRAINER_FAULT"));
}

void FaultPlan::set_rank(int rank, int ranks) {
  for (const Fault& fault : faults_)
    if (fault.rank && *fault.rank >= ranks)
      fail(ExitCode::config, "TRAINER_FAULT: '{}': this job has {}; right would be a rank from 0 to {}", fault.text,
           counted(ranks, "rank"), ranks - 1);
  rank_ = rank;
}

std::vector<FaultPlan::Outcome> FaultPlan::outcomes() const {
  std::vector<Outcome> all;
  all.reserve(faults_.size());
  for (const Fault& fault : faults_) all.push_back({fault.text, fault.happened});
  return all;
}

bool FaultPlan::matches(const Fault& fault, std::string_view site) const {
  return fault.site == site && (!fault.rank || *fault.rank == rank_) && (!fault.step || *fault.step == step_);
}

void FaultPlan::at(std::string_view site) const {
  for (const Fault& fault : faults_) {
    if (!matches(fault, site) || is_asked_for(fault.action)) continue;
    fault.happened = true;
    if (fault.action == "throw")
      fail(ExitCode::other, "fault planned for rank {} {} at '{}'", rank_,
           step_ > 0 ? fmt::format("step {}", step_) : "before the first step", site);
    if (fault.action == "exit") std::_Exit(static_cast<int>(fault.argument));
    if (fault.action == "kill") std::raise(SIGKILL);
    if (fault.action == "stop") std::raise(SIGSTOP);
    if (fault.action == "sleep") std::this_thread::sleep_for(std::chrono::duration<double>(fault.argument));
  }
}

std::optional<FaultPlan::Poison> FaultPlan::poison(std::string_view site) const {
  for (const Fault& fault : faults_) {
    if (!matches(fault, site) || (fault.action != "inf" && fault.action != "nan")) continue;
    fault.happened = true;
    return Poison{fault.tensor, fault.action == "inf" ? std::numeric_limits<double>::infinity()
                                                      : std::numeric_limits<double>::quiet_NaN()};
  }
  return std::nullopt;
}

bool FaultPlan::wrong_count() const {
  for (const Fault& fault : faults_)
    if (fault.action == "count" && matches(fault, fault.site)) return fault.happened = true;
  return false;
}

}  // namespace trainer
