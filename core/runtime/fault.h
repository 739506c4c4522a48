// Faults on purpose, so that failure handling can be tried by anyone: part of the product, off by default.
//   TRAINER_FAULT="rank=1,step=5,site=forward,action=kill;rank=0,site=save.write,action=sleep:0.2"
// Keys: rank (default: every rank), step (default: every step), site (required), action (required), tensor (poison
// only). Actions: throw, exit:CODE, kill (SIGKILL), stop (SIGSTOP), sleep:SECONDS, inf and nan (at `gradients`: poison
// the named gradient tensor, without a name the first), count (at `collective`: it is entered with a wrong element
// count). Sites: step, forward, gradients, optimizer, evaluate, save.begin, save.write, save.publish, load (of weights,
// at the start), collective.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace trainer {

class FaultPlan {
 public:
  FaultPlan() = default;
  /// Parses the text above. Throws Error(config) naming what is wrong.
  static FaultPlan parse(std::string_view text);
  /// The plan of the environment variable TRAINER_FAULT; empty when it is not set.
  static FaultPlan from_environment();

  /// Who this process is. Throws Error(config) when the plan names a rank that a job of `ranks` does not have.
  void set_rank(int rank, int ranks);
  /// The step that runs, counted from 1. Until it is told, or with one below 1, all is before the first step.
  void set_step(std::int64_t step) { step_ = step; }

  /// Carries out what is planned for this place: may throw, end or stop the process, or sleep.
  void at(std::string_view site) const;

  struct Poison {
    std::string tensor;  // empty: the first of the block that is asked
    double value;        // infinity or NaN
  };
  /// The tensor to poison at this site and step on this rank.
  std::optional<Poison> poison(std::string_view site) const;
  /// True when the collective about to start shall use a wrong element count.
  bool wrong_count() const;

  /// A fault as it was written, and whether it has happened on this rank.
  struct Outcome {
    std::string text;
    bool happened = false;
  };
  std::vector<Outcome> outcomes() const;

 private:
  struct Fault {
    std::string text;
    std::optional<int> rank;
    std::optional<std::int64_t> step;
    std::string site;
    std::string action;
    double argument = 0;
    std::string tensor;
    mutable bool happened = false;  // for a report; decides nothing
  };
  bool matches(const Fault& fault, std::string_view site) const;

  std::vector<Fault> faults_;
  int rank_ = 0;
  std::int64_t step_ = 0;
};

}  // namespace trainer
