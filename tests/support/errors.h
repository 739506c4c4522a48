// What tests ask of errors and of other texts.
#pragma once
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "core/runtime/check.h"

namespace trainer {

/// The message of the Error that `call` throws. A failure, and empty, when it throws none; a failure when its exit code
/// is another.
inline std::string error_of(ExitCode code, const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

/// True when every part occurs in the text.
inline ::testing::AssertionResult mentions(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts)
    if (text.find(part) == std::string::npos)
      return ::testing::AssertionFailure() << "'" << part << "' is not in:\n" << text;
  return ::testing::AssertionSuccess();
}

}  // namespace trainer
