#include "core/runtime/environment.h"

#include <unistd.h>

#include <array>
#include <climits>
#include <cstdlib>

namespace trainer {

std::string_view environment_variable(const char* name) {
  const char* value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): changed before threads start, if at all
  return value == nullptr ? std::string_view() : value;
}

std::string host_name() {
  std::array<char, HOST_NAME_MAX + 1> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "unknown";
}

}  // namespace trainer
