#include "core/runtime/fault.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/runtime/check.h"

namespace trainer {
namespace {

std::string refusal(std::string_view plan) {
  try {
    FaultPlan::parse(plan);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::config);
    return error.what();
  }
  return "";
}

void expect_refusal(std::string_view plan, const std::vector<std::string>& parts) {
  const std::string text = refusal(plan);
  for (const std::string& part : parts) EXPECT_NE(text.find(part), std::string::npos) << plan << ": " << text;
}

TEST(FaultPlan, KnowsEverySiteAndAction) {
  for (const char* site : {"step", "forward", "gradients", "optimizer", "evaluate", "save.begin", "save.write",
                           "save.publish", "load", "collective"})
    for (const char* action : {"throw", "exit:3", "kill", "stop", "sleep:0.5"})
      EXPECT_EQ(refusal(fmt::format("rank=0,site={},action={}", site, action)), "");
  EXPECT_EQ(refusal("rank=1,step=1,site=step,action=exit:255"), "");
  EXPECT_EQ(refusal("site=gradients,action=inf;site=gradients,action=nan,tensor=model.norm.weight"), "");
  EXPECT_EQ(refusal("site=collective,action=count"), "");
  EXPECT_EQ(refusal(""), "");
}

TEST(FaultPlan, RefusesWhatWouldNeverHappen) {
  expect_refusal("site=backward,action=kill", {"unknown site 'backward'", "step, forward, gradients", "collective)"});
  expect_refusal("site=step,action=explode", {"unknown action 'explode'", "throw, exit:CODE, kill, stop"});
  expect_refusal("action=kill", {"'action=kill' names no site", "save.publish"});
  expect_refusal("site=step", {"'site=step' names no action", "sleep:SECONDS"});
  expect_refusal("site=step,action=inf", {"'inf' does nothing at site 'step', only at 'gradients'"});
  expect_refusal("site=gradients,action=count", {"'count' does nothing at site 'gradients', only at 'collective'"});
  expect_refusal("site=step,action=sleep", {"'sleep' needs an argument: sleep:SECONDS"});
  expect_refusal("site=step,action=kill:9", {"'kill' takes no argument"});
  expect_refusal("site=step,action=exit:x", {"'x' is not a number"});
  expect_refusal("site=step,action=exit:256", {"'exit:256': right would be a whole number from 0 to 255"});
  expect_refusal("site=step,action=exit:1.5", {"'exit:1.5'"});
  expect_refusal("site=step,action=sleep:-1", {"the argument of an action -1 is below 0"});
  expect_refusal("site=step,action=sleep:nan", {"the argument of an action nan is below 0"});
  expect_refusal("site=step,action=sleep:1e300", {"'sleep:1e+300'", "a number from 0 to 1000000"});
  expect_refusal("site=step,step=0,action=kill", {"step 0 is below 1"});
  expect_refusal("site=step,rank=-1,action=kill", {"rank -1 is below 0"});
  expect_refusal("site=load,step=1,action=kill", {"'load' comes before the first step"});
  expect_refusal("where=step,action=kill", {"unknown key 'where'"});
  expect_refusal("rank=one,site=step,action=kill", {"rank 'one' is not a number"});
  // The faults before and behind it are sound.
  expect_refusal("site=step,action=kill;site=stpe,action=kill;site=load,action=throw", {"'stpe'"});
}

TEST(FaultPlan, HappensAtItsRankStepAndSiteOnly) {
  FaultPlan plan = FaultPlan::parse("rank=1,step=3,site=forward,action=throw");
  plan.set_rank(1, 2);
  plan.set_step(2);
  EXPECT_NO_THROW(plan.at("forward"));
  plan.set_step(3);
  EXPECT_NO_THROW(plan.at("optimizer"));
  EXPECT_THROW(plan.at("forward"), Error);
  plan.set_rank(0, 2);
  EXPECT_NO_THROW(plan.at("forward"));
}

/// Weights are loaded, and ranks talk, before there is a step.
TEST(FaultPlan, NamesTheStepThatRunsIfAny) {
  FaultPlan plan = FaultPlan::parse("site=load,action=throw;site=collective,action=throw");
  plan.set_rank(2, 4);
  const auto thrown_at = [&](std::string_view site) -> std::string {
    try {
      plan.at(site);
    } catch (const Error& error) {
      return error.what();
    }
    return "nothing";
  };
  EXPECT_EQ(thrown_at("load"), "fault planned for rank 2 before the first step at 'load'");
  EXPECT_EQ(thrown_at("collective"), "fault planned for rank 2 before the first step at 'collective'");
  plan.set_step(7);
  EXPECT_EQ(thrown_at("collective"), "fault planned for rank 2 step 7 at 'collective'");
}

TEST(FaultPlan, RefusesARankThatTheJobDoesNotHave) {
  FaultPlan plan = FaultPlan::parse("rank=1,site=step,action=kill;rank=7,step=3,site=forward,action=throw");
  EXPECT_NO_THROW(plan.set_rank(0, 8));
  try {
    plan.set_rank(0, 7);
    FAIL() << "not refused";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::config);
    EXPECT_NE(
        std::string(error.what())
            .find("'rank=7,step=3,site=forward,action=throw': this job has 7 ranks; right would be a rank from 0"),
        std::string::npos)
        << error.what();
  }
}

TEST(FaultPlan, RemembersWhatHasHappened) {
  FaultPlan plan = FaultPlan::parse(
      "step=2,site=step,action=sleep:0;step=2,site=gradients,action=nan;rank=1,site=collective,action=count;"
      "step=9,site=step,action=kill");
  plan.set_rank(1, 2);
  const auto happened = [&] {
    std::string text;
    for (const FaultPlan::Outcome& outcome : plan.outcomes()) text += outcome.happened ? '1' : '0';
    return text;
  };
  EXPECT_EQ(happened(), "0000");
  plan.set_step(2);
  plan.at("step");
  plan.at("gradients");
  plan.at("collective");
  EXPECT_EQ(happened(), "1000") << "a poisoned tensor and a wrong count are asked for, not carried out";
  EXPECT_TRUE(plan.poison("gradients"));
  EXPECT_TRUE(plan.wrong_count());
  EXPECT_EQ(happened(), "1110");
  EXPECT_EQ(plan.outcomes().back().text, "step=9,site=step,action=kill");
}

}  // namespace
}  // namespace trainer
