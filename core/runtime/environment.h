// What the operating system tells a process about where it runs.
#pragma once
#include <string>
#include <string_view>

namespace trainer {

/// Value of an environment variable; empty when it is not set.
std::string_view environment_variable(const char* name);

/// Name of this host; "unknown" when it has none.
std::string host_name();

}  // namespace trainer
