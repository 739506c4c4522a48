#include "core/runtime/check.h"

namespace trainer::detail {

void check_failed(const char* file, int line, const char* condition, const std::string& message) {
  throw Error(ExitCode::other, fmt::format("internal check failed at {}:{}: {}: {}", file, line, condition, message));
}

}  // namespace trainer::detail
